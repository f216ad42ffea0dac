// Lock-peer has contenders for the lock of go-zookeeper, each in a session of its own. Its arguments and its journal are those
// of LockPeer.java: ZooKeeper's address, the lock's path, rounds, and modes, one contender each; go-zookeeper has MUTEX only. It
// tells each grant: begin and end in nanoseconds of CLOCK_MONOTONIC, the czxid of the contender's node, the mode, and who. It
// ends with its standard input.
//
// With "steps" in place of the rounds, each line of standard input moves one contender: "WHO acquire MUTEX" or "WHO release
// MUTEX". A contender comes with its first line.
//
// A contender that fails keeps its session, as a program does that goes on with other work: go-zookeeper leaves its node in the
// queue.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sys/unix"
)

const (
	sessionTimeout = 10 * time.Second
	// How long a holder has the lock.
	held = time.Millisecond
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("lock-peer: ")
	if len(os.Args) < 4 {
		log.Fatal("arguments: ADDRESS PATH ROUNDS MODE...")
	}
	address, path := os.Args[1], os.Args[2]
	if os.Args[3] == "steps" {
		followSteps(address, path)
		return
	}
	rounds, err := strconv.Atoi(os.Args[3])
	if err != nil || rounds < 0 {
		log.Fatalf("ROUNDS is %q, and has to be a number, 0 at least", os.Args[3])
	}
	var contenders sync.WaitGroup
	for i, mode := range os.Args[4:] {
		if mode != "MUTEX" {
			log.Fatalf("MODE is %q; go-zookeeper has MUTEX only", mode)
		}
		who := fmt.Sprintf("go-%d", i)
		contenders.Add(1)
		go func() {
			defer contenders.Done()
			if err := contend(address, path, who, rounds); err != nil {
				tell(map[string]any{"event": "failed", "error": err.Error(), "who": who})
			}
		}()
	}
	contenders.Wait()
	tell(map[string]any{"event": "done"})
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// followSteps moves contenders, one for each name, by the lines of standard input.
func followSteps(address, path string) {
	contenders := make(map[string]chan string)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) != 3 || words[2] != "MUTEX" {
			log.Fatalf("the line is %q, and has to be WHO acquire MUTEX or WHO release MUTEX", lines.Text())
		}
		who := words[0]
		steps, known := contenders[who]
		if !known {
			steps = make(chan string, 8)
			contenders[who] = steps
			go func() {
				if err := step(address, path, who, steps); err != nil {
					tell(map[string]any{"event": "failed", "error": err.Error(), "who": who})
				}
			}()
		}
		steps <- words[1]
	}
}

// step is one contender. It tells "acquired" when it holds the lock, and the whole grant when it has given it back.
func step(address, path, who string, steps <-chan string) error {
	session, _, err := zk.Connect([]string{address}, sessionTimeout, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	lock := zk.NewLock(session, path, zk.WorldACL(zk.PermAll))
	var begin, token int64
	for what := range steps {
		switch what {
		case "acquire":
			if err := lock.LockWithData([]byte(who)); err != nil {
				return fmt.Errorf("to lock: %w", err)
			}
			begin = monotonic()
			if token, err = ownNode(session, path); err != nil {
				return fmt.Errorf("to look for the own node: %w", err)
			}
			tell(map[string]any{"event": "acquired", "token": token, "mode": "MUTEX", "who": who})
		case "release":
			end := monotonic()
			if err := lock.Unlock(); err != nil {
				return fmt.Errorf("to unlock: %w", err)
			}
			tell(map[string]any{"event": "grant", "begin": begin, "end": end, "token": token, "mode": "MUTEX", "who": who})
		default:
			return fmt.Errorf("the step is %q, and has to be acquire or release", what)
		}
	}
	return nil
}

// contend holds the lock so many times. It closes its session only if nothing fails.
func contend(address, path, who string, rounds int) error {
	session, _, err := zk.Connect([]string{address}, sessionTimeout, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	lock := zk.NewLock(session, path, zk.WorldACL(zk.PermAll))
	for range rounds {
		if err := lock.LockWithData([]byte(who)); err != nil {
			return fmt.Errorf("to lock: %w", err)
		}
		begin := monotonic()
		token, err := ownNode(session, path)
		if err != nil {
			return fmt.Errorf("to look for the own node: %w", err)
		}
		time.Sleep(held)
		end := monotonic()
		if err := lock.Unlock(); err != nil {
			return fmt.Errorf("to unlock: %w", err)
		}
		tell(map[string]any{"event": "grant", "begin": begin, "end": end, "token": token, "mode": "MUTEX", "who": who})
	}
	session.Close()
	return nil
}

// ownNode returns the transaction that created the node of this session.
func ownNode(session *zk.Conn, path string) (int64, error) {
	names, _, err := session.Children(path)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		exists, stat, err := session.Exists(path + "/" + name)
		if err != nil {
			return 0, err
		}
		if exists && stat.EphemeralOwner == session.SessionID() {
			return stat.Czxid, nil
		}
	}
	return 0, errors.New("no node of this session")
}

// monotonic returns the machine's clock, which all its processes share. Go's own monotonic clock is the process's.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		log.Fatalf("CLOCK_MONOTONIC: %v", err)
	}
	return now.Nano()
}

var output sync.Mutex

// tell writes an event to standard output, a JSON object a line.
func tell(event map[string]any) {
	output.Lock()
	defer output.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(event); err != nil {
		log.Fatalf("standard output: %v", err)
	}
}
