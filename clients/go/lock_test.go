package sidekeeper_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

func hold(t *testing.T, ctx context.Context, request sidekeeper.LockRequest) *sidekeeper.Lock {
	t.Helper()
	lock, err := sidekeeper.HoldLock(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Release() })
	return lock
}

func refusedLock(t *testing.T, err error) *sidekeeper.LockError {
	t.Helper()
	var refused *sidekeeper.LockError
	if !errors.As(err, &refused) {
		t.Fatalf("not a LockError: %v", err)
	}
	return refused
}

func TestALockHasOneHolderAfterTheOther(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	request := sidekeeper.LockRequest{Name: "bill", Holder: "machine-7", Endpoint: sidecar.Endpoint}
	ctx := context.Background()
	first := hold(t, ctx, request)
	busy := request
	busy.WaitTimeout = -1
	_, err := sidekeeper.HoldLock(ctx, busy)
	refused := refusedLock(t, err)
	equal(t, "code", refused.Code, codes.DeadlineExceeded)
	equal(t, "reason", refused.Reason, "LOCK_NOT_FREE")
	waiting, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := sidekeeper.HoldLock(waiting, request); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error of a context that is done: %v", err)
	}
	equal(t, "Release", first.Release(), nil)
	if first.Context().Err() == nil {
		t.Error("the context lasts after the release")
	}
	second := hold(t, ctx, request)
	if second.FencingToken <= first.FencingToken {
		t.Errorf("tokens: %d, then %d", first.FencingToken, second.FencingToken)
	}
	_, err = sidekeeper.HoldLock(ctx, sidekeeper.LockRequest{Name: "a/b", Endpoint: sidecar.Endpoint})
	equal(t, "code", refusedLock(t, err).Code, codes.InvalidArgument)
	_, err = sidekeeper.HoldLock(ctx, sidekeeper.LockRequest{Endpoint: sidecar.Endpoint})
	equal(t, "code", refusedLock(t, err).Code, codes.InvalidArgument)
}

func TestTheContextOfALostLockIsDone(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	lock := hold(t, context.Background(), sidekeeper.LockRequest{Name: "bill", Endpoint: sidecar.Endpoint})
	connection, err := grpc.NewClient(sidecar.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	operator := sidekeeperv1.NewLockServiceClient(connection)
	id := &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Name{Name: "bill"}}
	found, err := operator.GetLock(context.Background(), &sidekeeperv1.GetLockRequest{Lock: id})
	if err != nil {
		t.Fatal(err)
	}
	node := found.GetLock().GetHolders()[0].GetNodeName()
	if _, err := operator.BreakLock(context.Background(), &sidekeeperv1.BreakLockRequest{Lock: id, NodeName: node}); err != nil {
		t.Fatal(err)
	}
	<-lock.Context().Done()
	equal(t, "reason", refusedLock(t, context.Cause(lock.Context())).Reason, "LOCK_LOST")
	equal(t, "reason", refusedLock(t, lock.Release()).Reason, "LOCK_LOST")
}
