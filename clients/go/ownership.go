package sidekeeper

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// ownership is the items of a job that this process owns, and the callbacks for their changes.
//
// It outlives the job's attachments: after a gap within the reattach grace, the new stream's assignment is compared with
// the items before the gap. Its methods need the lock; callbacks are called in the dispatcher's turn.
type ownership struct {
	job        *Job
	dispatcher *dispatcher
	owned      map[int]AssignedItem
	told       *Assignment // the stream's last assignment; nil: there was none, or the stream has ended
	leaving    bool
}

// difference is the changes of one assignment.
type difference struct {
	lost, revoked, assigned []AssignedItem
}

// changed: the sidecar has sent an assignment; noted is called when all callbacks have returned without an error.
func (o *ownership) changed(assignment Assignment, noted func()) {
	if o.leaving {
		o.call(assignment, difference{}, nil, noted) // it owns no item any more, although messages still come
		return
	}
	changes := o.compare(assignment)
	o.told = &assignment
	o.owned = byItem(assignment.Items)
	o.call(assignment, changes, &assignment, noted)
}

// lost: the items are lost; the sidecar's last assignment stays known.
func (o *ownership) lost(reason AssignmentReason) {
	if o.told == nil {
		return
	}
	about := *o.told
	about.Reason = reason
	changes := difference{lost: o.all()}
	o.owned = nil
	o.call(about, changes, nil, nil)
}

// stillThere: the sidecar has sent a new lease, and the items are not lost.
func (o *ownership) stillThere() {
	if o.told != nil && len(o.owned) == 0 && len(o.told.Items) > 0 {
		o.owned = byItem(o.told.Items)
		o.call(*o.told, difference{assigned: o.all()}, nil, nil)
	}
}

// leave: the application leaves in good order, and its items are revoked while the stream is still open.
func (o *ownership) leave() {
	o.leaving = true
	o.end(true)
}

// ended: the stream has ended, and the instance with it.
func (o *ownership) ended() {
	o.end(false)
}

func (o *ownership) end(inOrder bool) {
	told := o.told
	gone := o.all()
	o.told, o.owned = nil, nil
	if told == nil {
		return
	}
	changes := difference{lost: gone}
	if inOrder {
		changes = difference{revoked: gone}
	}
	detached := told.detached()
	o.call(detached, changes, &detached, nil)
}

func (o *ownership) compare(assignment Assignment) difference {
	now := byItem(assignment.Items)
	var gone, renewed, assigned []AssignedItem
	for _, before := range o.all() {
		after, has := now[before.Item]
		switch {
		case !has:
			gone = append(gone, before)
		case before.FencingToken != after.FencingToken:
			renewed = append(renewed, before)
		}
	}
	for _, item := range assignment.Items {
		if before, had := o.owned[item.Item]; !had || before != item {
			assigned = append(assigned, item)
		}
	}
	switch assignment.Reason {
	case AssignmentSessionLost:
		return difference{lost: gone, assigned: assigned}
	case AssignmentAttached:
		// After a gap: an item with another token had another owner, or none, meanwhile.
		return difference{lost: sorted(append(gone, renewed...)), assigned: assigned}
	default:
		return difference{revoked: gone, assigned: assigned}
	}
}

// call queues the callbacks for a difference, lost and revoked items first; then the whole assignment goes to the channel,
// if it is not nil.
func (o *ownership) call(about Assignment, changes difference, whole *Assignment, then func()) {
	job := o.job
	o.dispatcher.put(func(ctx context.Context) error {
		var errs []error
		tell := func(callback ItemsFunc, items []AssignedItem) {
			if callback != nil && len(items) > 0 {
				change := ItemsChange{
					about.JobName, about.InstanceID, about.Generation, about.ShardingTotalCount, items, about.Reason,
				}
				errs = append(errs, attempt(func() error { return callback(ctx, change) }))
			}
		}
		tell(job.OnLost, changes.lost)
		tell(job.OnRevoked, changes.revoked)
		tell(job.OnAssigned, changes.assigned)
		if whole != nil && job.Assignments != nil {
			errs = append(errs, newAssignmentEvent(*whole).send(ctx, job.Assignments))
		}
		err := errors.Join(errs...)
		if err == nil && then != nil {
			then()
		}
		return err
	})
}

// all returns the owned items, ascending.
func (o *ownership) all() []AssignedItem {
	var all []AssignedItem
	for _, item := range o.owned {
		all = append(all, item)
	}
	return sorted(all)
}

func byItem(items []AssignedItem) map[int]AssignedItem {
	owned := make(map[int]AssignedItem, len(items))
	for _, item := range items {
		owned[item.Item] = item
	}
	return owned
}

func sorted(items []AssignedItem) []AssignedItem {
	slices.SortFunc(items, func(a, b AssignedItem) int { return cmp.Compare(a.Item, b.Item) })
	return items
}
