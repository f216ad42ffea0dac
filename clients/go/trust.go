package sidekeeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Which sidecar is called without an endpoint? Only one of this user, or of root: another user may have taken the place
// before it, to get calls and tokens. The system tells who listens, before anything is sent.

const (
	// runtimeVariable names the folder of a user's sockets (XDG Base Directory Specification).
	runtimeVariable = "XDG_RUNTIME_DIR"
	// systemSocket is the socket of a sidecar that is a service of the system.
	systemSocket = "/run/sidekeeper/api.sock"
	// defaultAddress is the sidecar's default address without its scheme.
	defaultAddress = "127.0.0.1:7070"

	// acceptTimeout is how long the sidecar may take to accept a connection: the system does not tell its owner before.
	acceptTimeout = 2 * time.Second
	// acceptInterval is how often that is looked for.
	acceptInterval = 5 * time.Millisecond
)

// errOwnerUnknown: this system does not tell who listens.
var errOwnerUnknown = errors.New("this system does not tell who listens there")

// place is where a sidecar is.
type place struct {
	// endpoint is the one that was given, else the default one.
	endpoint string
	// isGiven says that it was given, and so is trusted.
	isGiven bool
}

// placeOf returns the endpoint given, or the environment's, or the default.
func placeOf(given string) place {
	if endpoint := resolve(given, EndpointVariable, ""); endpoint != "" {
		return place{endpoint: endpoint, isGiven: true}
	}
	return place{endpoint: DefaultEndpoint}
}

// defaultSockets are where a socket may be without an endpoint, the best first.
func defaultSockets() []string {
	if folder := os.Getenv(runtimeVariable); filepath.IsAbs(folder) {
		return []string{filepath.Join(folder, "sidekeeper", "api.sock"), systemSocket}
	}
	return []string{systemSocket}
}

// finder connects to the sidecar of this user or of root.
type finder struct {
	// hasToken says that calls will have the sidecar's token.
	hasToken bool
}

// dial connects to the first of the usual places that such a sidecar serves.
func (f finder) dial(ctx context.Context, _ string) (net.Conn, error) {
	var errs []error
	for _, socket := range defaultSockets() {
		connection, err := f.try(ctx, "unix", socket)
		if err == nil {
			return connection, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	connection, err := f.try(ctx, "tcp", defaultAddress)
	if err == nil {
		return connection, nil
	}
	return nil, errors.Join(append(errs, err)...)
}

func (f finder) try(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	owner, err := listenerOwner(ctx, connection)
	if err = f.check(address, owner, err); err != nil {
		_ = connection.Close()
		return nil, err
	}
	return connection, nil
}

// check fails if the listener is not of this user or root. Where the system does not tell it, only a token must not be sent.
func (f finder) check(address string, owner int, err error) error {
	const advice = "if you trust it, give its address in " + EndpointVariable
	own := os.Geteuid()
	switch {
	case err == nil && (owner == own || owner == 0):
		return nil
	case err == nil:
		return fmt.Errorf("uid %d serves at %s, and not this user (uid %d) or root; %s", owner, address, own, advice)
	case errors.Is(err, errOwnerUnknown) && !f.hasToken:
		return nil
	default:
		return fmt.Errorf("it is not known who serves at %s: %w; %s", address, err, advice)
	}
}
