package sidekeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sidekeeper/sidekeeper/clients/go/internal/memory"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// releaseTimeout is how long the sidecar may take to delete the node of a lock.
const releaseTimeout = 30 * time.Second

// LockMode is how a lock is held.
type LockMode int

const (
	// LockMutex is for one holder.
	LockMutex LockMode = iota
	// LockRead is for any number of readers, and no writer.
	LockRead
	// LockWrite is for one writer, and no reader.
	LockWrite
)

// LockRequest says which lock is wanted, and how.
type LockRequest struct {
	// Name is the lock's name, below the sidecar's lock root. This or Path is required.
	Name string
	// Path is the path of a lock that other programs use, for example Curator's InterProcessMutex.
	Path string
	// Mode is how the lock is to be held.
	Mode LockMode
	// WaitTimeout is how long to wait. Zero: as long as the context lasts; negative: not at all.
	WaitTimeout time.Duration
	// HoldTimeout is how long the lock may be held; then it is lost. Zero: without a limit.
	HoldTimeout time.Duration
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

	what       string
	holdID     string
	ctx        context.Context
	cancel     context.CancelCauseFunc
	connection *grpc.ClientConn
	client     sidekeeperv1.LockServiceClient
	stream     sidekeeperv1.LockService_HoldClient
	end        context.CancelFunc
	read       chan struct{}
	asked      chan struct{}
	ask        func()

	mutex     sync.Mutex
	until     time.Duration
	known     bool
	timer     *time.Timer
	suspended bool
	released  bool
	lost      *LockError
}

// HoldLock waits for a lock and holds it. While it waits, the context ends the waiting. Its error is a [*LockError], the
// context's, or that the endpoint cannot be read.
func HoldLock(ctx context.Context, request LockRequest) (*Lock, error) {
	what := request.Name + request.Path
	endpoint := resolve(request.Endpoint, EndpointVariable, DefaultEndpoint)
	token, options := resolve(request.Token, TokenVariable, ""), request.DialOptions
	if inMemory := memory.DialOptions(ctx); inMemory != nil {
		endpoint, token, options = DefaultEndpoint, "", inMemory
	}
	connection, err := openChannel(endpoint, token, options)
	if err != nil {
		return nil, err
	}
	// The stream lasts until the lock is released, also after the context is done.
	streaming, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	lock := &Lock{what: what, connection: connection, end: end, read: make(chan struct{}), asked: make(chan struct{})}
	lock.ask = sync.OnceFunc(func() { close(lock.asked) })
	lock.client = sidekeeperv1.NewLockServiceClient(connection)
	err = lock.acquire(streaming, request)
	if !stop() && err == nil {
		err = ctx.Err() // the context was done just when the lock was got
	}
	if err != nil {
		end()
		connection.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, lockError(what, endpoint, err)
	}
	lock.ctx, lock.cancel = context.WithCancelCause(ctx)
	lock.watch()
	go lock.follow()
	return lock, nil
}

// Context is done when the lock is lost, with a [*LockError] as its cause; when the context of [HoldLock] is done; or after
// [Lock.Release].
func (l *Lock) Context() context.Context {
	return l.ctx
}

// Suspended says that the registry does not answer. The lock is held until its lease ends.
func (l *Lock) Suspended() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.suspended
}

// RevocationRequested is closed when another program asks for the lock. Nothing forces this one.
func (l *Lock) RevocationRequested() <-chan struct{} {
	return l.asked
}

// Release gives the lock back. Its error is a [*LockError] if the lock was lost before. It can be called again.
func (l *Lock) Release() error {
	l.mutex.Lock()
	first, lost := !l.released, l.lost
	l.released = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mutex.Unlock()
	if first {
		if lost == nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), releaseTimeout)
			// If there is no answer, the end of the stream gives the lock back.
			_, _ = l.client.Release(ctx, &sidekeeperv1.ReleaseRequest{HoldId: l.holdID})
			cancel()
		}
		l.cancel(nil)
		l.end()
		<-l.read
		l.connection.Close()
	}
	if lost != nil {
		return lost
	}
	return nil
}

func (l *Lock) acquire(ctx context.Context, request LockRequest) error {
	message, err := holdRequest(request)
	if err != nil {
		return err
	}
	if l.stream, err = l.client.Hold(ctx, message); err != nil {
		return err
	}
	for {
		event, err := l.stream.Recv()
		if err != nil {
			return err
		}
		if started := event.GetStarted(); started != nil {
			l.holdID = started.GetHoldId()
		}
		if acquired := event.GetAcquired(); acquired != nil {
			l.FencingToken, l.NodePath = acquired.GetFencingToken(), acquired.GetNodePath()
			l.renew(acquired.GetLease())
			return nil
		}
	}
}

func holdRequest(request LockRequest) (*sidekeeperv1.HoldRequest, error) {
	id := &sidekeeperv1.LockId{}
	switch {
	case (request.Name == "") == (request.Path == ""):
		return nil, status.Error(codes.InvalidArgument, "give either a name or a path")
	case request.Name != "":
		id.Id = &sidekeeperv1.LockId_Name{Name: request.Name}
	default:
		id.Id = &sidekeeperv1.LockId_Path{Path: request.Path}
	}
	message := &sidekeeperv1.HoldRequest{
		Lock:          id,
		Mode:          sidekeeperv1.LockMode(request.Mode) + sidekeeperv1.LockMode_LOCK_MODE_MUTEX,
		Holder:        request.Holder,
		ApplicationId: request.ApplicationID,
	}
	if request.WaitTimeout != 0 {
		message.WaitTimeout = durationpb.New(max(0, request.WaitTimeout))
	}
	if request.HoldTimeout != 0 {
		message.HoldTimeout = durationpb.New(request.HoldTimeout)
	}
	return message, nil
}

// follow reads the stream until it ends.
func (l *Lock) follow() {
	defer close(l.read)
	for {
		event, err := l.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			l.lose(&LockError{Lock: l.what, Code: codes.Aborted, Details: "the sidecar has ended the stream of the lock", Reason: "LOCK_LOST"})
			return
		case err != nil:
			told := status.Convert(err)
			// Without a word of the sidecar: it is gone, and the lock with the stream.
			l.lose(&LockError{Lock: l.what, Code: told.Code(), Details: told.Message(), Reason: cmp.Or(reasonOf(told), "LOCK_LOST")})
			return
		case event.GetLost() != nil:
			// The status that follows says why.
			reason := strings.TrimPrefix(event.GetLost().GetReason().String(), "LOCK_LOSS_REASON_")
			l.lose(&LockError{Lock: l.what, Code: codes.Aborted, Details: "the sidecar has reported the loss: " + reason, Reason: "LOCK_LOST"})
		case event.GetLeaseRenewed() != nil:
			l.renew(event.GetLeaseRenewed())
		case event.GetSuspended() != nil:
			l.suspend(true)
		case event.GetResumed() != nil:
			l.suspend(false)
			l.renew(event.GetResumed())
		case event.GetRevocationRequested() != nil:
			l.ask()
		}
	}
}

func (l *Lock) suspend(suspended bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.suspended = suspended
}

func (l *Lock) renew(lease *sidekeeperv1.LockLease) {
	remaining := remainingLease(lease)
	if remaining == nil {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.known, l.until = true, max(l.until, boottime()+*remaining)
}

// watch ends the hold when its lease is over and the sidecar is silent.
func (l *Lock) watch() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.released || l.lost != nil || !l.known {
		return
	}
	left := l.until - boottime()
	if left <= 0 {
		l.loseLocked(&LockError{Lock: l.what, Code: codes.DeadlineExceeded, Details: "the lease of the lock is over, and the sidecar is silent", Reason: "LOCK_LOST"})
		return
	}
	l.timer = time.AfterFunc(min(left, leaseLookInterval), l.watch)
}

func (l *Lock) lose(why *LockError) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.loseLocked(why)
}

func (l *Lock) loseLocked(why *LockError) {
	if l.lost == nil && !l.released {
		l.lost = why
		l.cancel(why)
	}
}

func lockError(what, endpoint string, err error) error {
	told := status.Convert(err)
	details := told.Message()
	if nobodyAnswers(told) {
		details = fmt.Sprintf("%s (%s)", noSidecar(endpoint), details)
	}
	return &LockError{Lock: what, Code: told.Code(), Details: details, Reason: reasonOf(told)}
}
