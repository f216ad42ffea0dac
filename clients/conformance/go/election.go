package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

const (
	// lookInterval is how often a leader looks whether the registry answers.
	lookInterval = 5 * time.Millisecond

	// resignationsMax is how many resignations may wait for the leader.
	resignationsMax = 16
)

// candidate is the work of a leader.
type candidate struct {
	name    string
	lingers bool
	// resignations are the successors for each time that it is to resign; empty: the next candidate in the order.
	resignations chan string
}

// stand stands for election, on a goroutine of its own.
func (d *driven) stand(given command) {
	one := &candidate{
		name: cmp.Or(given.Name, given.Path), lingers: given.Lingers, resignations: make(chan string, resignationsMax),
	}
	d.mu.Lock()
	d.candidates = append(d.candidates, one)
	d.mu.Unlock()
	go one.run(sidekeeper.CampaignRequest{
		Name: given.Name, Path: given.Path, Value: given.Value, ApplicationID: given.ApplicationID,
	})
}

func (d *driven) resign(given command) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.candidates {
		if one.name == given.Name {
			one.resignations <- given.Successor
		}
	}
}

// run leads until the driver ends it, or until the leadership is lost.
func (c *candidate) run(request sidekeeper.CampaignRequest) {
	campaign, err := sidekeeper.Lead(context.Background(), request)
	if err != nil {
		c.failed("election_failed", err)
		return
	}
	c.tell("leads", fields{"term": campaign.Term, "node": campaign.NodePath})
	c.work(campaign)
	if err := campaign.Resign(); err != nil {
		c.failed("election_failed", err)
		return
	}
	c.tell("resigned", fields{})
}

func (c *candidate) work(campaign *sidekeeper.Campaign) {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	suspended := false
	for {
		select {
		case successor := <-c.resignations:
			if successor == "" {
				return
			}
			err := campaign.ResignTo(successor)
			if err == nil {
				return
			}
			c.failed("resign_failed", err)
		case <-campaign.Context().Done():
			c.tell("leader_cancelled", fields{})
			if c.lingers {
				<-c.resignations
			}
			return
		case <-ticker.C:
			if now := campaign.Suspended(); now != suspended {
				suspended = now
				c.tell("leader_suspended", fields{"suspended": now})
			}
		}
	}
}

func (c *candidate) failed(event string, err error) {
	if told := electionFailure(err); told != nil {
		c.tell(event, told)
	}
}

// tell tells something of the election.
func (c *candidate) tell(event string, more fields) {
	told := maps.Clone(more)
	told["election"] = c.name
	tell(event, told)
}

// observe tells each leader until the observation ends.
func observe(request sidekeeper.ObserveRequest) {
	election := cmp.Or(request.Name, request.Path)
	for leader, err := range sidekeeper.ObserveLeader(context.Background(), request) {
		switch {
		case err != nil:
			if told := electionFailure(err); told != nil {
				told["election"] = election
				tell("observation_failed", told)
			}
		case leader == nil:
			tell("leader_seen", fields{"election": election, "value": nil, "term": nil})
		default:
			tell("leader_seen", fields{"election": election, "value": leader.Value, "term": leader.Term})
		}
	}
}

// electionFailure returns the fields of the client's error. Nil: it is another error, which is logged.
func electionFailure(err error) fields {
	var failure *sidekeeper.ElectionError
	if !errors.As(err, &failure) {
		slog.Error(err.Error())
		return nil
	}
	return fields{"code": codeName(failure.Code), "reason": failure.Reason, "message": failure.Details}
}
