package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	// sessionTimeout is that of a sidecar.
	sessionTimeout = 30 * time.Second
	// sessions is how many there are at most.
	sessions = 2
)

// zooKeeper has sessions with ZooKeeper.
type zooKeeper struct {
	connections [sessions]*zk.Conn
	// bare has the requests of a lock alone, the floor of each library.
	bare bool
}

// silent drops the log of the library.
type silent struct{}

func (silent) Printf(string, ...any) {}

func openZooKeeper(address string, bare bool) (*zooKeeper, error) {
	made := &zooKeeper{bare: bare}
	for number := range made.connections {
		connection, events, err := zk.Connect([]string{address}, sessionTimeout, zk.WithLogger(silent{}))
		if err != nil {
			return nil, err
		}
		for event := range events {
			if event.State == zk.StateHasSession {
				break
			}
		}
		made.connections[number] = connection
	}
	return made, nil
}

func (z *zooKeeper) contender(lock string, session int) (contender, error) {
	connection := z.connections[session]
	if z.bare {
		return &requests{connection: connection, parent: "/bench-locks/requests-" + lock}, nil
	}
	return &goLock{zk.NewLock(connection, "/bench-locks/go-zookeeper-"+lock, zk.WorldACL(zk.PermAll))}, nil
}

func (z *zooKeeper) queue(contenders, sessions, grants int) ([]grant, error) {
	if z.bare {
		return z.handOvers(sessions, grants)
	}
	return contend(z, contenders, sessions, grants)
}

// goLock is the library's own lock.
type goLock struct {
	lock *zk.Lock
}

func (g *goLock) acquire() error { return g.lock.Lock() }

func (g *goLock) release() error { return g.lock.Unlock() }

// requests are those of a lock, and nothing else.
type requests struct {
	connection *zk.Conn
	parent     string
	node       string
}

// acquire creates a node and lists the queue, both in one flight.
func (r *requests) acquire() error {
	created := make(chan error, 1)
	sending := make(chan struct{})
	go func() {
		close(sending)
		var err error
		r.node, err = r.connection.Create(r.parent+"/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		created <- err
	}()
	// The library sends from one queue. The order of the two is that of the goroutines, which the answer shows.
	<-sending
	children, _, err := r.connection.Children(r.parent)
	if failed := <-created; failed != nil {
		return failed
	}
	if err == nil && !slices.Contains(children, r.name()) {
		// The list came first: a lock would have to ask again.
		children, _, err = r.connection.Children(r.parent)
	}
	if err == nil && len(children) == 0 {
		err = fmt.Errorf("%s is gone", r.node)
	}
	return err
}

func (r *requests) release() error {
	return r.connection.Delete(r.node, -1)
}

func (r *requests) name() string {
	return r.node[strings.LastIndexByte(r.node, '/')+1:]
}

// handOvers has two contenders in turn: the waiting one watches the node of the other one, which is deleted.
func (z *zooKeeper) handOvers(sessions, grants int) ([]grant, error) {
	var both [2]*requests
	for number := range both {
		both[number] = &requests{connection: z.connections[number%sessions], parent: "/bench-locks/requests-queue"}
	}
	holder, waiting := both[0], both[1]
	if err := holder.acquire(); err != nil {
		return nil, err
	}
	journal := []grant{{time.Since(began), 0}}
	for len(journal) < grants {
		if err := waiting.acquire(); err != nil {
			return nil, err
		}
		_, _, gone, err := waiting.connection.GetW(holder.node)
		if err != nil {
			return nil, err
		}
		deleted := make(chan error, 1)
		journal[len(journal)-1].released = time.Since(began)
		go func() { deleted <- holder.release() }()
		if event := <-gone; event.Err != nil {
			return nil, event.Err
		}
		if _, _, err := waiting.connection.Children(waiting.parent); err != nil {
			return nil, err
		}
		now := time.Since(began)
		if err := <-deleted; err != nil {
			return nil, err
		}
		journal = append(journal, grant{now, now})
		holder, waiting = waiting, holder
	}
	return journal, holder.release()
}
