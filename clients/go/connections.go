package sidekeeper

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/sidekeeper/sidekeeper/clients/go/internal/memory"
)

// connectionIdle is how long a connection without users is kept.
var connectionIdle = 10 * time.Second

// connections are those that all locks, campaigns and observations of this process share: one for each sidecar.
var connections = connectionPool{all: map[connectionKey]*sharedConnection{}}

type connectionPool struct {
	mutex sync.Mutex
	all   map[connectionKey]*sharedConnection
}

type connectionKey struct {
	to    place
	token string
}

// sharedConnection is a connection and its users. Its fields need the mutex of the pool.
type sharedConnection struct {
	*grpc.ClientConn
	key   connectionKey
	users int
	// kept says that further users get it.
	kept bool
	// answered says that a sidecar has answered on it.
	answered bool
	idle     *time.Timer
}

// connection is a user's part in a connection.
type connection struct {
	*grpc.ClientConn
	// shared is nil if the connection is the user's own one.
	shared         *sharedConnection
	answeredBefore bool
}

// CloseIdleConnections closes the connections that no lock, campaign or observation uses now, and that would be closed some
// seconds later. A test that looks for goroutines that are left calls it at its end.
func CloseIdleConnections() {
	connections.mutex.Lock()
	defer connections.mutex.Unlock()
	for _, shared := range connections.all {
		if shared.users == 0 {
			shared.discard()
			_ = shared.Close()
		}
	}
}

// connect returns a part in a sidecar's connection, and the endpoint. With settings of its own a user has a connection of its
// own. In the context of a test it leads to the test's sidecar in memory.
func connect(ctx context.Context, endpoint, token string, further []grpc.DialOption) (*connection, string, error) {
	to, token := placeOf(endpoint), resolve(token, TokenVariable, "")
	if inMemory := memory.DialOptions(ctx); inMemory != nil {
		to, token, further = place{endpoint: DefaultEndpoint, isGiven: true}, "", inMemory
	}
	if len(further) > 0 {
		own, err := openChannel(to, token, further)
		return &connection{ClientConn: own}, to.endpoint, err
	}
	part, err := connections.use(connectionKey{to: to, token: token})
	return part, to.endpoint, err
}

// use adds a user to a connection.
func (p *connectionPool) use(key connectionKey) (*connection, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	shared := p.all[key]
	if shared == nil {
		opened, err := openChannel(key.to, key.token, nil)
		if err != nil {
			return nil, err
		}
		shared = &sharedConnection{ClientConn: opened, key: key, kept: true}
		p.all[key] = shared
	}
	shared.users++
	if shared.idle != nil {
		shared.idle.Stop()
	}
	return &connection{ClientConn: shared.ClientConn, shared: shared, answeredBefore: shared.answered}, nil
}

// discard gives the connection to no further user.
func (s *sharedConnection) discard() {
	s.kept = false
	if connections.all[s.key] == s {
		delete(connections.all, s.key)
	}
	if s.idle != nil {
		s.idle.Stop()
	}
}

// closeIdle closes a connection that has had no user for long.
func (s *sharedConnection) closeIdle() {
	connections.mutex.Lock()
	defer connections.mutex.Unlock()
	if s.users == 0 && s.kept {
		s.discard()
		_ = s.Close()
	}
}

// answers says that a sidecar has answered.
func (c *connection) answers() {
	if c.shared != nil {
		connections.mutex.Lock()
		defer connections.mutex.Unlock()
		c.shared.answered = true
	}
}

// failed takes the failure of a call. It returns whether a new connection may do better: a sidecar had answered on this one.
func (c *connection) failed(err error) bool {
	if !nobodyAnswers(status.Convert(err)) {
		return false
	}
	c.discard()
	return c.answeredBefore
}

// discard gives the connection to no further user.
func (c *connection) discard() {
	if c.shared != nil {
		connections.mutex.Lock()
		defer connections.mutex.Unlock()
		c.shared.discard()
	}
}

// close says that the user has ended its calls. It is called once.
func (c *connection) close() {
	if c.shared == nil {
		_ = c.Close()
		return
	}
	connections.mutex.Lock()
	defer connections.mutex.Unlock()
	c.shared.users--
	switch {
	case c.shared.users > 0:
	case c.shared.kept:
		c.shared.idle = time.AfterFunc(connectionIdle, c.shared.closeIdle)
	default:
		_ = c.Close()
	}
}
