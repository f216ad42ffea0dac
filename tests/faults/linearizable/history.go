package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"

	"github.com/anishathalye/porcupine"
)

// operation is a line of a history: what an application has asked of the register, and what it has heard.
type operation struct {
	Client int `json:"client"`
	// Nanoseconds of CLOCK_MONOTONIC. No return: the application has heard nothing, and the operation may take effect at any
	// later time, or never.
	Call   int64  `json:"call"`
	Return *int64 `json:"return"`
	// read or write.
	Op string `json:"op"`
	// The fencing token of the hold.
	Token int64 `json:"token"`
	// What was read or written. Writes differ from each other.
	Value string `json:"value"`
	// What the application had read before it wrote.
	From string `json:"from"`
	// accepted, refused or unknown.
	Outcome string `json:"outcome"`
}

func (o operation) check() error {
	switch {
	case o.Client < 0:
		return fmt.Errorf("client is %d, and has to be 0 at least", o.Client)
	case o.Op != "read" && o.Op != "write":
		return fmt.Errorf("op is %q, and has to be read or write", o.Op)
	case o.Token <= 0:
		return fmt.Errorf("token is %d, and has to be 1 at least", o.Token)
	case o.Outcome != "accepted" && o.Outcome != "refused" && o.Outcome != "unknown":
		return fmt.Errorf("outcome is %q, and has to be accepted, refused or unknown", o.Outcome)
	case (o.Return == nil) != (o.Outcome == "unknown"):
		return fmt.Errorf("outcome is %q: exactly an unknown outcome has no return", o.Outcome)
	case o.Return != nil && *o.Return < o.Call:
		return fmt.Errorf("return is %d, before the call at %d", *o.Return, o.Call)
	}
	return nil
}

// history is what all applications have done to one register.
type history []operation

func readHistory(file string) (history, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var read history
	for number, line := range bytes.Split(bytes.TrimSpace(content), []byte("\n")) {
		var one operation
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&one)
		if err == nil {
			err = one.check()
		}
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, number+1, err)
		}
		read = append(read, one)
	}
	return read, nil
}

// register is the state: a register that accepts no lower token than it has seen.
type register struct {
	value string
	token int64
}

// step says whether the register can answer so, and what it is then.
func (r register) step(o operation) (bool, register) {
	if o.Token < r.token {
		return o.Outcome != "accepted", r
	}
	after := register{r.value, o.Token}
	if o.Op == "write" {
		after.value = o.Value
	}
	// The lock's part: nobody has written between what a holder has read and what it writes.
	expected := o.From
	if o.Op == "read" {
		expected = o.Value
	}
	switch {
	case o.Outcome == "refused":
		return false, r
	case o.Op == "read" && o.Outcome == "unknown", expected == r.value:
		return true, after
	default:
		// An operation of unknown outcome may also have been lost on its way.
		return o.Outcome == "unknown", r
	}
}

func (h history) operations() []porcupine.Operation {
	var all []porcupine.Operation
	for _, one := range h {
		returned := int64(math.MaxInt64)
		if one.Return != nil {
			returned = *one.Return
		}
		all = append(all, porcupine.Operation{ClientId: one.Client, Input: one, Call: one.Call, Return: returned})
	}
	return all
}

var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		return state.(register).step(input.(operation))
	},
	DescribeOperation: func(input, _ any) string {
		one := input.(operation)
		if one.Op == "read" {
			return fmt.Sprintf("read %q, token %d: %s", one.Value, one.Token, one.Outcome)
		}
		return fmt.Sprintf("write %q after %q, token %d: %s", one.Value, one.From, one.Token, one.Outcome)
	},
	DescribeState: func(state any) string {
		now := state.(register)
		return fmt.Sprintf("%q, token %d", now.value, now.token)
	},
}
