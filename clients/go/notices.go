package sidekeeper

import (
	"cmp"
	"fmt"
	"log/slog"
	"sync"
)

// reasonsMax is how many reasons are remembered at most, so that reasons that always differ do not fill the memory.
const reasonsMax = 64

// noSidecar is the message for a person if no sidecar answers at the endpoint.
func noSidecar(endpoint string) string {
	return fmt.Sprintf("no sidecar answers at %s: is `sidekeeper serve` running there?", endpoint)
}

// presence is whether a sidecar answers; the same for all jobs of an application.
type presence struct {
	endpoint string

	mu      sync.Mutex
	missing bool
}

// isMissing logs that no sidecar answers; once, rather than with each try.
func (p *presence) isMissing(log *slog.Logger, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missing {
		log.Debug(fmt.Sprintf("still no sidecar at %s: %s; trying again", p.endpoint, why))
		return
	}
	p.missing = true
	log.Warn(fmt.Sprintf("%s (%s)", noSidecar(p.endpoint), why))
}

// answers says that a sidecar has answered, if none did before.
func (p *presence) answers(log *slog.Logger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missing {
		p.missing = false
		log.Info("a sidecar answers at " + p.endpoint)
	}
}

// notices is the log lines of one job that are not to be repeated; it outlives the job's attachments. Its methods
// need the lock.
type notices struct {
	log     *slog.Logger
	reasons map[string]bool
	known   map[Problem]bool
}

func newNotices(log *slog.Logger) *notices {
	return &notices{log: log, reasons: map[string]bool{}, known: map[Problem]bool{}}
}

// waiting says why the instance is not registered yet.
func (n *notices) waiting(job, reason string) {
	if n.reasons[reason] {
		return
	}
	if len(n.reasons) >= reasonsMax {
		clear(n.reasons)
	}
	n.reasons[reason] = true
	n.log.Warn(fmt.Sprintf("not attached to job %s yet: %s", job, reason))
}

// attached notes that the instance is registered. The reasons of a later wait are logged again.
func (n *notices) attached() {
	clear(n.reasons)
}

// problems logs the problems that are new. A problem that was solved and returns is logged again.
func (n *notices) problems(problems []Problem) {
	now := make(map[Problem]bool, len(problems))
	for _, problem := range problems {
		if !n.known[problem] && !now[problem] {
			code := ""
			if problem.Code != "" {
				code = " (" + problem.Code + ")"
			}
			n.log.Warn(cmp.Or(problem.Path, "registry") + ": " + problem.Message + code)
		}
		now[problem] = true
	}
	n.known = now
}
