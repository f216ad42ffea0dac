package sidekeeper

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

const (
	// DefaultEndpoint is the sidecar's default address. Without an endpoint its sockets are looked for, too: api.sock in
	// $XDG_RUNTIME_DIR/sidekeeper and in /run/sidekeeper. Only a sidecar of this user or of root is called there.
	DefaultEndpoint = "http://127.0.0.1:7070"
	// EndpointVariable is the environment variable that names the endpoint.
	EndpointVariable = "SIDEKEEPER_ENDPOINT"
	// TokenVariable is the environment variable that holds the token.
	TokenVariable = "SIDEKEEPER_TOKEN"

	// maxMessageBytes is the largest message in either direction; an assignment of 10 000 items with parameters stays
	// far below.
	maxMessageBytes = 16 * 1024 * 1024

	// A suspended sidecar, or one that has crashed without closing its connection, is noticed after the sum of the two.
	// gRPC for Go pings no more often than every 10 s.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second

	// The channel's own reconnection must not be slower than the workers', which wait 0.1 to 5 s (see backoff).
	initialReconnect = 100 * time.Millisecond
	maxReconnect     = time.Second
	connectTimeout   = 5 * time.Second

	endpointsAllowed = "allowed are HOST:PORT, http://HOST:PORT, https://HOST:PORT, unix:PATH and unix:///PATH"
)

// resolve returns the value given, or the environment's, or the default.
func resolve(given, variable, fallback string) string {
	if given != "" {
		return given
	}
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return fallback
}

// endpointTarget translates an endpoint to gRPC's name for it.
func endpointTarget(endpoint string) (string, error) {
	if name, isUnix := strings.CutPrefix(endpoint, "unix:"); isUnix {
		name = strings.TrimPrefix(name, "//")
		if !path.IsAbs(name) {
			return "", fmt.Errorf("endpoint %q: a Unix socket needs an absolute path; %s", endpoint, endpointsAllowed)
		}
		return "unix:" + name, nil
	}
	text := endpoint
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	parts, err := url.Parse(text)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w; %s", endpoint, err, endpointsAllowed)
	}
	if parts.Scheme != "http" && parts.Scheme != "https" {
		return "", fmt.Errorf("endpoint %q: the scheme %q is not supported; %s", endpoint, parts.Scheme, endpointsAllowed)
	}
	bare := (parts.Path == "" || parts.Path == "/") && parts.RawQuery == "" && parts.Fragment == "" && parts.User == nil
	host, port, err := net.SplitHostPort(parts.Host)
	number, wrong := strconv.ParseUint(port, 10, 16)
	if err != nil || wrong != nil || host == "" || number == 0 || !bare {
		return "", fmt.Errorf("endpoint %q: it must be a host and a port, and nothing else; %s", endpoint, endpointsAllowed)
	}
	return "dns:///" + net.JoinHostPort(host, port), nil
}

// openChannel opens a channel; it connects when it is first used, and again whenever the connection breaks. Without an
// endpoint it connects to a sidecar of this user or of root only.
func openChannel(to place, token string, further []grpc.DialOption) (*grpc.ClientConn, error) {
	target, err := endpointTarget(to.endpoint)
	if err != nil {
		return nil, err
	}
	encryption, err := transportCredentials(to.endpoint)
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(encryption),
		// The sidecar is on this machine, or named by its address: neither a proxy of the environment nor a resolver's settings are meant for it.
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: initialReconnect, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnect},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallSendMsgSize(maxMessageBytes),
			grpc.MaxCallRecvMsgSize(maxMessageBytes),
		),
	}
	if !hasTLS(to.endpoint) {
		// For a Unix socket some would send the socket's path as the authority, which HTTP/2 servers may refuse. With TLS the
		// authority is the name that the sidecar's certificate has to have.
		options = append(options, grpc.WithAuthority("localhost"))
	}
	if !to.isGiven {
		target = "passthrough:///sidekeeper"
		options = append(options, grpc.WithContextDialer(finder{hasToken: token != ""}.dial))
	}
	if token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(token)))
	}
	connection, err := grpc.NewClient(target, append(options, further...)...)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", to.endpoint, err)
	}
	return connection, nil
}

// bearer is a token that goes with each call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity says that the token may travel in the clear: without TLS the sidecar is on this machine.
func (b bearer) RequireTransportSecurity() bool {
	return false
}
