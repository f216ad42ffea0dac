package sidekeeper

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// LockMode is how a lock is held.
type LockMode int

const (
	// LockMutex is for one holder.
	LockMutex LockMode = iota
	// LockRead is for any number of readers, and no writer.
	LockRead
	// LockWrite is for one writer, and no reader.
	LockWrite
	// LockSemaphore is for as many holders as [LockRequest.Permits].
	LockSemaphore
)

// LockRequest says which lock is wanted, and how.
type LockRequest struct {
	// Name is the lock's name, below the sidecar's lock root. This or Path is required.
	Name string
	// Path is the path of a lock that other programs use, for example Curator's InterProcessMutex or InterProcessSemaphoreV2.
	Path string
	// Mode is how the lock is to be held. With Permits a mutex is a semaphore.
	Mode LockMode
	// Permits is the most holders at once, of a semaphore: 1 to 1000. All programs have to give the same number, because each
	// counts with its own. The fencing token of such a lock fences one permit only.
	Permits uint32
	// WaitTimeout is how long to wait. Zero: as long as the context lasts; negative: not at all.
	WaitTimeout time.Duration
	// HoldTimeout is how long the lock may be held; then it is lost. Zero: without a limit.
	HoldTimeout time.Duration
	// LockDelay is for how long nobody may hold if this process loses the lock without giving it back: it is killed, or the
	// lease is over. At most ten minutes. For a lock with a name, alone or as a writer. Zero: not at all.
	LockDelay time.Duration
	// Holder is whom others see as the holder. Empty: the sidecar's address.
	Holder string
	// ApplicationID lets a second hold of the same lock by the same id be refused, because it would wait for itself.
	ApplicationID string
	// Endpoint and Token are those of the sidecar. Empty: as for [Application].
	Endpoint, Token string
	// DialOptions are further settings of the connection to the sidecar.
	DialOptions []grpc.DialOption
}

// Lock is a lock that is held. Call [Lock.Release] when the work is done, also after a loss.
//
// docs/locks.md says what a lock promises and what it cannot. The store refuses late writes by the fencing token.
type Lock struct {
	// FencingToken is greater than that of each earlier holder.
	FencingToken int64
	// NodePath is the node that proves the hold, for a check in a ZooKeeper transaction.
	NodePath string

	contender
	client sidekeeperv1.LockServiceClient
	stream sidekeeperv1.LockService_HoldClient
	asked  chan struct{}
	ask    func()
}

// HoldLock waits for a lock and holds it. While it waits, the context ends the waiting. Its error is a [*LockError], the
// context's, or that the endpoint cannot be read.
func HoldLock(ctx context.Context, request LockRequest) (*Lock, error) {
	lock := &Lock{contender: contender{turn: "lock", fail: func(code codes.Code, details, reason string) error {
		return &LockError{Lock: request.Name + request.Path, Code: code, Details: details, Reason: reason}
	}}}
	lock.asked = make(chan struct{})
	lock.ask = sync.OnceFunc(func() { close(lock.asked) })
	to := address{endpoint: request.Endpoint, token: request.Token, further: request.DialOptions}
	enter := func(ctx context.Context) error { return lock.acquire(ctx, request) }
	if err := lock.contend(ctx, to, enter, lock.take); err != nil {
		return nil, err
	}
	return lock, nil
}

// Context is done when the lock is lost, with a [*LockError] as its cause; when the context of [HoldLock] is done; or after
// [Lock.Release].
func (l *Lock) Context() context.Context {
	return l.ctx
}

// Suspended says that the registry does not answer. The lock is held until its lease ends.
func (l *Lock) Suspended() bool {
	return l.isSuspended()
}

// RevocationRequested is closed when another program asks for the lock. Nothing forces this one.
func (l *Lock) RevocationRequested() <-chan struct{} {
	return l.asked
}

// Release gives the lock back. Its error is a [*LockError] if the lock was lost before. It can be called again.
func (l *Lock) Release() error {
	return l.leave(func(ctx context.Context) error {
		_, err := l.client.Release(ctx, &sidekeeperv1.ReleaseRequest{HoldId: l.id})
		return err
	})
}

func (l *Lock) acquire(ctx context.Context, request LockRequest) error {
	message, err := holdRequest(request)
	if err != nil {
		return err
	}
	l.client = sidekeeperv1.NewLockServiceClient(l.connection)
	if l.stream, err = l.client.Hold(ctx, message); err != nil {
		return err
	}
	for {
		event, err := l.stream.Recv()
		if err != nil {
			return err
		}
		if started := event.GetStarted(); started != nil {
			l.id = started.GetHoldId()
		}
		if acquired := event.GetAcquired(); acquired != nil {
			l.FencingToken, l.NodePath = acquired.GetFencingToken(), acquired.GetNodePath()
			l.renew(acquired.GetLease())
			return nil
		}
	}
}

// take reads an event of a lock that is held.
func (l *Lock) take() error {
	event, err := l.stream.Recv()
	if err != nil {
		return err
	}
	if lost := event.GetLost(); lost != nil {
		l.reported(lost.GetReason())
	}
	if event.GetRevocationRequested() != nil {
		l.ask()
	}
	l.renew(event.GetLeaseRenewed())
	l.suspend(event.GetSuspended() != nil, event.GetResumed())
	return nil
}

func holdRequest(request LockRequest) (*sidekeeperv1.HoldRequest, error) {
	id, err := lockID(request.Name, request.Path)
	if err != nil {
		return nil, err
	}
	mode := request.Mode
	if mode == LockMutex && request.Permits > 0 {
		mode = LockSemaphore
	}
	message := &sidekeeperv1.HoldRequest{
		Lock:          id,
		Mode:          sidekeeperv1.LockMode(mode) + sidekeeperv1.LockMode_LOCK_MODE_MUTEX,
		Permits:       request.Permits,
		Holder:        request.Holder,
		ApplicationId: request.ApplicationID,
	}
	if request.WaitTimeout != 0 {
		message.WaitTimeout = durationpb.New(max(0, request.WaitTimeout))
	}
	if request.LockDelay != 0 {
		message.LockDelay = durationpb.New(request.LockDelay)
	}
	if request.HoldTimeout != 0 {
		message.HoldTimeout = durationpb.New(request.HoldTimeout)
	}
	return message, nil
}
