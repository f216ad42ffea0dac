// Contenders hold and release locks, and tell how long it took: a program of the measurement in benches/sidecar/locks.rs, which
// has the protocol of the commands.
//
//	contenders requests|go-zookeeper ZOOKEEPER
//	contenders sidekeeper|stubs|path ENDPOINT...
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// contender holds one lock, again and again.
type contender interface {
	acquire() error
	release() error
}

// library makes contenders.
type library interface {
	// contender returns a contender for a lock, in one of the sessions.
	contender(lock string, session int) (contender, error)
	// queue returns what contenders of one lock did, each of which stands in the queue again at once.
	queue(contenders, sessions, grants int) ([]grant, error)
}

// hopper makes calls that its sidecar answers by itself.
type hopper interface {
	hop() error
}

// grant says when a contender had got a lock, and when it began to give the lock back.
type grant struct {
	acquired, released time.Duration
}

// began is the beginning of all times.
var began = time.Now()

func main() {
	if len(os.Args) < 3 {
		log.Fatal("arguments: a library, and where its server is")
	}
	made, err := open(os.Args[1], os.Args[2:])
	if err != nil {
		log.Fatal(err)
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		if err := perform(made, commands.Text()); err != nil {
			log.Fatalf("%s, %s: %v", os.Args[1], commands.Text(), err)
		}
	}
}

func open(name string, addresses []string) (library, error) {
	switch name {
	case "requests", "go-zookeeper":
		return openZooKeeper(addresses[0], name == "requests")
	case "sidekeeper":
		return &client{addresses}, nil
	case "stubs", "path":
		return openStubs(addresses, name == "path")
	}
	return nil, fmt.Errorf("unknown library: %s", name)
}

func perform(made library, command string) error {
	var name string
	var numbers [3]int
	fields, _ := fmt.Sscan(command, &name, &numbers[0], &numbers[1], &numbers[2])
	switch {
	case name == "pairs" && fields == 2:
		return pairs(made, numbers[0])
	case name == "queue" && fields == 4:
		grants, err := made.queue(numbers[0], numbers[1], numbers[2])
		if err != nil {
			return err
		}
		var times []time.Duration
		for _, one := range grants {
			times = append(times, one.acquired, one.released)
		}
		tell("grants", times)
		return nil
	case name == "hops" && fields == 2:
		return hops(made, numbers[0])
	}
	return fmt.Errorf("unknown command")
}

// pairs holds and releases a lock that nobody else wants, again and again.
func pairs(made library, count int) error {
	one, err := made.contender("pairs", 0)
	if err != nil {
		return err
	}
	var acquired, released []time.Duration
	for range count {
		start := time.Now()
		if err := one.acquire(); err != nil {
			return err
		}
		held := time.Now()
		if err := one.release(); err != nil {
			return err
		}
		released = append(released, time.Since(held))
		acquired = append(acquired, held.Sub(start))
	}
	tell("acquired", acquired)
	tell("released", released)
	return nil
}

func hops(made library, count int) error {
	caller, can := made.(hopper)
	if !can {
		return fmt.Errorf("this library has no sidecar")
	}
	var taken []time.Duration
	for range count {
		start := time.Now()
		if err := caller.hop(); err != nil {
			return err
		}
		taken = append(taken, time.Since(start))
	}
	tell("hops", taken)
	return nil
}

// contend has so many contenders hold one lock, each again and again without a pause, until it was granted so often.
func contend(made library, contenders, sessions, grants int) ([]grant, error) {
	var granted atomic.Int64
	var failed atomic.Value
	var mutex sync.Mutex
	var journal []grant
	var all sync.WaitGroup
	for number := range contenders {
		one, err := made.contender("queue", number%sessions)
		if err != nil {
			return nil, err
		}
		all.Add(1)
		go func() {
			defer all.Done()
			for granted.Load() < int64(grants) && failed.Load() == nil {
				if err := one.acquire(); err != nil {
					failed.Store(err)
					return
				}
				now := time.Since(began)
				granted.Add(1)
				if err := one.release(); err != nil {
					failed.Store(err)
					return
				}
				mutex.Lock()
				journal = append(journal, grant{now, now})
				mutex.Unlock()
			}
		}()
	}
	all.Wait()
	if err, is := failed.Load().(error); is {
		return nil, err
	}
	return journal, nil
}

// tell prints a name and times in nanoseconds.
func tell(name string, times []time.Duration) {
	var line strings.Builder
	line.WriteString(name)
	for _, one := range times {
		fmt.Fprintf(&line, " %d", one.Nanoseconds())
	}
	fmt.Println(line.String())
}
