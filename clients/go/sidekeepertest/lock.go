package sidekeepertest

import (
	"context"
	"fmt"
	"strings"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// LockLoss is why a lock or a leadership is lost.
type LockLoss int

const (
	// LockLeaseLost says that the session with the registry could not be proven alive in time, or has ended.
	LockLeaseLost = LockLoss(sidekeeperv1.LockLossReason_LOCK_LOSS_REASON_LEASE_LOST)
	// LockRevoked says that somebody has deleted the node of the hold, or of the candidate.
	LockRevoked = LockLoss(sidekeeperv1.LockLossReason_LOCK_LOSS_REASON_REVOKED)
	// LockHoldTimeout says that the hold's own time limit was over. A leadership is never lost so.
	LockHoldTimeout = LockLoss(sidekeeperv1.LockLossReason_LOCK_LOSS_REASON_HOLD_TIMEOUT)
	// LockDraining says that the sidecar stops.
	LockDraining = LockLoss(sidekeeperv1.LockLossReason_LOCK_LOSS_REASON_DRAINING)
)

// LockState is a lock at one moment.
type LockState struct {
	// Holders are the contenders that hold the lock.
	Holders []LockContender
	// Waiting are the contenders that wait, in their order.
	Waiting []LockContender
}

// LockContender is a program that holds a lock or waits for it.
type LockContender struct {
	// Holder is whom other programs see.
	Holder string
	// Mode is how it holds the lock, or asks for it.
	Mode sidekeeper.LockMode
	// FencingToken is its token, if it holds the lock or comes to hold it.
	FencingToken int64
	// NodeName is the name of its node.
	NodeName string
}

// Context is a context in which [sidekeeper.HoldLock], [sidekeeper.Lead] and [sidekeeper.ObserveLeader] ask this sidecar,
// whatever the endpoint is. The contexts of handlers and callbacks come from it.
func (s *Sidecar) Context() context.Context {
	return s.ctx
}

// Lock returns who holds a lock, and who waits for it. A name that begins with "/" is a path, here as in all methods for locks.
func (s *Sidecar) Lock(lock string) LockState {
	s.t.Helper()
	response, err := s.locks.GetLock(s.ctx, &sidekeeperv1.GetLockRequest{Lock: lockID(lock)})
	s.must(err)
	found := response.GetLock()
	return LockState{Holders: contenders(found.GetHolders()), Waiting: contenders(found.GetWaiting())}
}

// WaitLock waits until so many contenders hold a lock, and so many wait for it.
func (s *Sidecar) WaitLock(lock string, holders, waiting int) LockState {
	s.t.Helper()
	var state LockState
	s.within(fmt.Sprintf("lock %q has %d holders, and %d contenders that wait", lock, holders, waiting), func() bool {
		state = s.Lock(lock)
		return len(state.Holders) == holders && len(state.Waiting) == waiting
	})
	return state
}

// LockNames returns the names of the locks that somebody holds or waits for.
func (s *Sidecar) LockNames() []string {
	s.t.Helper()
	var names []string
	for token := ""; ; {
		page, err := s.locks.ListLocks(s.ctx, &sidekeeperv1.ListLocksRequest{PageToken: token})
		s.must(err)
		names = append(names, page.GetNames()...)
		if token = page.GetNextPageToken(); token == "" {
			return names
		}
	}
}

// LoseLock takes a lock from its holders, who are told so. The next contender holds it.
func (s *Sidecar) LoseLock(lock string, loss LockLoss) {
	s.t.Helper()
	s.must(s.locks.takeAway(lockID(lock), loss))
}

// RequestRevocation asks the holder to give a lock back, as another program does. Nothing forces it.
func (s *Sidecar) RequestRevocation(lock string) {
	s.t.Helper()
	_, err := s.locks.RequestRevocation(s.ctx, &sidekeeperv1.RequestRevocationRequest{Lock: lockID(lock)})
	s.must(err)
}

// SuspendLocks acts as a registry that does not answer: holders are told so, and nobody gets a lock until ResumeLocks.
func (s *Sidecar) SuspendLocks() {
	s.locks.suspend()
}

// ResumeLocks acts as a registry that answers again: holders are told so, with a new lease.
func (s *Sidecar) ResumeLocks() {
	s.locks.resume()
}

// SetLockLease sets the lease of the locks that are acquired or resumed from now on. It is not renewed: with a short one a
// test sees how the application acts beside a silent sidecar.
func (s *Sidecar) SetLockLease(lease time.Duration) {
	s.locks.setLease(lease)
}

// must ends the test after a refusal, which is the test's mistake.
func (s *Sidecar) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func lockID(lock string) *sidekeeperv1.LockId {
	if strings.HasPrefix(lock, "/") {
		return &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Path{Path: lock}}
	}
	return &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Name{Name: lock}}
}

func contenders(found []*sidekeeperv1.Contender) []LockContender {
	var all []LockContender
	for _, one := range found {
		all = append(all, LockContender{
			Holder:       one.GetHolder(),
			Mode:         sidekeeper.LockMode(one.GetMode() - sidekeeperv1.LockMode_LOCK_MODE_MUTEX),
			FencingToken: one.GetFencingToken(),
			NodeName:     one.GetNodeName(),
		})
	}
	return all
}
