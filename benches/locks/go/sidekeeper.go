package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// client is the client library, whose holds share a connection.
type client struct {
	endpoints []string
}

func (c *client) contender(lock string, session int) (contender, error) {
	return &clientLock{request: sidekeeper.LockRequest{Name: "client-" + lock, Endpoint: c.endpoints[session]}}, nil
}

func (c *client) queue(contenders, sessions, grants int) ([]grant, error) {
	return contend(c, contenders, sessions, grants)
}

type clientLock struct {
	request sidekeeper.LockRequest
	held    *sidekeeper.Lock
}

func (l *clientLock) acquire() (err error) {
	l.held, err = sidekeeper.HoldLock(context.Background(), l.request)
	return err
}

func (l *clientLock) release() error { return l.held.Release() }

// stubs are the generated calls, over a connection that stays open.
type stubs struct {
	connections []*grpc.ClientConn
	// byPath has the locks be those of other programs.
	byPath bool
}

func openStubs(endpoints []string, byPath bool) (*stubs, error) {
	made := &stubs{byPath: byPath}
	for _, endpoint := range endpoints {
		connection, err := grpc.NewClient("unix:"+strings.TrimPrefix(endpoint, "unix://"),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
		if err != nil {
			return nil, err
		}
		made.connections = append(made.connections, connection)
	}
	return made, nil
}

func (s *stubs) contender(lock string, session int) (contender, error) {
	id := &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Name{Name: "stubs-" + lock}}
	if s.byPath {
		id = &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Path{Path: "/bench-locks/path-" + lock}}
	}
	calls := sidekeeperv1.NewLockServiceClient(s.connections[session])
	return &stubLock{calls: calls, request: &sidekeeperv1.HoldRequest{Lock: id}}, nil
}

func (s *stubs) queue(contenders, sessions, grants int) ([]grant, error) {
	return contend(s, contenders, sessions, grants)
}

func (s *stubs) hop() error {
	health := grpc_health_v1.NewHealthClient(s.connections[0])
	_, err := health.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	return err
}

type stubLock struct {
	calls   sidekeeperv1.LockServiceClient
	request *sidekeeperv1.HoldRequest
	stream  grpc.ServerStreamingClient[sidekeeperv1.HoldResponse]
	holdID  string
}

func (l *stubLock) acquire() (err error) {
	if l.stream, err = l.calls.Hold(context.Background(), l.request); err != nil {
		return err
	}
	for {
		event, err := l.stream.Recv()
		switch {
		case err != nil:
			return err
		case event.GetStarted() != nil:
			l.holdID = event.GetStarted().GetHoldId()
		case event.GetAcquired() != nil:
			return nil
		}
	}
}

func (l *stubLock) release() error {
	_, err := l.calls.Release(context.Background(), &sidekeeperv1.ReleaseRequest{HoldId: l.holdID})
	if err != nil {
		return err
	}
	for {
		event, err := l.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case event.GetLost() != nil:
			return fmt.Errorf("the lock was lost: %v", event.GetLost().GetReason())
		}
	}
}
