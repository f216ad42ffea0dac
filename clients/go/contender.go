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

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// releaseTimeout is how long the sidecar may take to delete the node of a contender.
const releaseTimeout = 30 * time.Second

// contender is what locks and elections have in common: a place in a queue, which is a stream, and the lease and the
// sidecar's word that say whether the contender's turn lasts.
type contender struct {
	// turn is the name for the contender's turn in errors.
	turn       string
	fail       func(code codes.Code, details, reason string) error
	id         string
	ctx        context.Context
	cancel     context.CancelCauseFunc
	connection *connection
	endpoint   string
	end        context.CancelFunc
	read       chan struct{}

	mutex     sync.Mutex
	until     time.Duration
	known     bool
	timer     *time.Timer
	suspended bool
	released  bool
	closed    bool
	lost      error
}

// address is where the sidecar is, and how to connect to it.
type address struct {
	endpoint, token string
	further         []grpc.DialOption
}

// contend waits for the contender's turn. enter opens the stream on the connection, and reads it until then; take reads an event
// after that.
func (c *contender) contend(ctx context.Context, to address, enter func(ctx context.Context) error, take func() error) error {
	for again := true; again; {
		connection, endpoint, err := connect(ctx, to.endpoint, to.token, to.further)
		if err != nil {
			return err
		}
		c.connection, c.endpoint = connection, endpoint
		// The stream lasts until the contender leaves, also after the context is done.
		streaming, end := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(ctx, end)
		c.end = end
		err = enter(streaming)
		if !stop() && err == nil {
			err = ctx.Err() // the context was done just when the turn came
		}
		if err == nil {
			break
		}
		end()
		again = connection.failed(err) && c.id == ""
		connection.close()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !again:
			return c.refused(err)
		}
	}
	c.connection.answers()
	c.read = make(chan struct{})
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.watch()
	go c.follow(take)
	return nil
}

func (c *contender) refused(err error) error {
	details, told := refusal(err, c.endpoint)
	return c.fail(told.Code(), details, reasonOf(told))
}

// leave ends the contender's turn with a call, which is answered when the node is deleted. If there is no answer, the end of
// the stream does the same. It returns the error of a loss before.
func (c *contender) leave(call func(ctx context.Context) error) error {
	c.mutex.Lock()
	first, stays, lost := !c.closed, !c.released && c.lost == nil, c.lost
	c.closed = true
	c.releaseLocked()
	c.mutex.Unlock()
	if first {
		if stays {
			_ = c.call(call)
		}
		c.cancel(nil)
		c.end()
		<-c.read
		c.connection.close()
	}
	return lost
}

// call makes a call that may take as long as a deletion, also after the context is done.
func (c *contender) call(call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), releaseTimeout)
	defer cancel()
	return call(ctx)
}

// release says that from now on nothing can be lost.
func (c *contender) release() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.releaseLocked()
}

func (c *contender) releaseLocked() {
	c.released = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// follow reads the stream until it ends.
func (c *contender) follow(take func() error) {
	defer close(c.read)
	for {
		err := take()
		switch {
		case errors.Is(err, io.EOF):
			c.lose(codes.Aborted, "the sidecar has ended the stream of the "+c.turn, "")
			return
		case err != nil:
			c.connection.failed(err)
			told := status.Convert(err)
			// Without a word of the sidecar: it is gone, and the contender with the stream.
			c.lose(told.Code(), told.Message(), reasonOf(told))
			return
		}
	}
}

func (c *contender) renew(lease *sidekeeperv1.LockLease) {
	remaining := remainingLease(lease)
	if remaining == nil {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.known, c.until = true, max(c.until, boottime()+*remaining)
}

// suspend takes the news that the registry does not answer, or the lease with which it answers again.
func (c *contender) suspend(suspended bool, resumed *sidekeeperv1.LockLease) {
	if suspended || resumed != nil {
		c.mutex.Lock()
		c.suspended = suspended
		c.mutex.Unlock()
	}
	c.renew(resumed)
}

func (c *contender) isSuspended() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.suspended
}

// watch ends the contender's turn when its lease is over and the sidecar is silent.
func (c *contender) watch() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.released || c.lost != nil || !c.known {
		return
	}
	left := c.until - boottime()
	if left <= 0 {
		c.connection.discard()
		c.loseLocked(codes.DeadlineExceeded, "the lease of the "+c.turn+" is over, and the sidecar is silent", "")
		return
	}
	c.timer = time.AfterFunc(min(left, leaseLookInterval), c.watch)
}

// reported takes the sidecar's word that the turn is lost.
func (c *contender) reported(reason sidekeeperv1.LockLossReason) {
	why := strings.TrimPrefix(reason.String(), "LOCK_LOSS_REASON_")
	c.lose(codes.Aborted, "the sidecar has reported the loss: "+why, "")
}

func (c *contender) lose(code codes.Code, details, reason string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.loseLocked(code, details, reason)
}

func (c *contender) loseLocked(code codes.Code, details, reason string) {
	if c.lost == nil && !c.released {
		c.lost = c.fail(code, details, cmp.Or(reason, "LOCK_LOST"))
		c.cancel(c.lost)
		// If only the clock says so, or the sidecar does not know `ends_when_lost`, the candidate stands on.
		c.end()
	}
}

// lockID returns the name of a lock or an election in the protocol.
func lockID(name, path string) (*sidekeeperv1.LockId, error) {
	switch {
	case (name == "") == (path == ""):
		return nil, status.Error(codes.InvalidArgument, "give either a name or a path")
	case name != "":
		return &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Name{Name: name}}, nil
	default:
		return &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Path{Path: path}}, nil
	}
}

// refusal returns the text and the status of a call that has failed.
func refusal(err error, endpoint string) (string, *status.Status) {
	told := status.Convert(err)
	if nobodyAnswers(told) {
		return fmt.Sprintf("%s (%s)", noSidecar(endpoint), told.Message()), told
	}
	return told.Message(), told
}
