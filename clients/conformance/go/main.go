// The Go test application: does what the driver says, and tells what happens (see ../README.md).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

const (
	exitOther       = 1
	exitBadSettings = 2
	exitRefused     = 3

	// commandBytesMax is the longest command.
	commandBytesMax = 1 << 20
)

func main() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{
		Level:       slog.LevelDebug,
		ReplaceAttr: asTheDriverReads,
	})))
	status, err := drive(os.Stdin)
	if err != nil {
		slog.Error(err.Error())
	}
	os.Exit(status)
}

// asTheDriverReads gives records the names that those of all languages have.
func asTheDriverReads(groups []string, attribute slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return attribute
	}
	switch attribute.Key {
	case slog.MessageKey:
		attribute.Key = "message"
	case slog.LevelKey:
		if attribute.Value.Any() == slog.LevelWarn {
			attribute.Value = slog.StringValue("WARNING")
		}
	}
	return attribute
}

// drive takes the command run, then the others beside it. Returns the exit status.
func drive(input io.Reader) (int, error) {
	commands := bufio.NewScanner(input)
	commands.Buffer(nil, commandBytesMax)
	driven := newDriven()
	for commands.Scan() {
		var one command
		if err := json.Unmarshal(commands.Bytes(), &one); err != nil {
			return exitOther, fmt.Errorf("command %q: %w", commands.Bytes(), err)
		}
		if one.Command == "run" {
			go func() {
				for commands.Scan() {
					driven.obeyLine(commands.Bytes())
				}
				os.Exit(exitOther) // nobody is there any more
			}()
			return driven.run(one)
		}
		driven.obey(one)
	}
	return exitOther, errors.New("no command run")
}

// run runs the client; returns the exit status.
func (d *driven) run(given command) (int, error) {
	app := &sidekeeper.Application{}
	if given.DrainTimeout != nil {
		app.DrainTimeout = time.Duration(*given.DrainTimeout * float64(time.Second))
		if app.DrainTimeout == 0 {
			app.DrainTimeout = -1
		}
	}
	for _, job := range given.Jobs {
		app.Jobs = append(app.Jobs, d.job(job))
	}
	d.started(app)
	tell("running", fields{})
	err := app.RunUntilSignal(context.Background())
	var refused *sidekeeper.AttachError
	switch {
	case err == nil:
		tell("stopped", fields{})
		return 0, nil
	case errors.As(err, &refused):
		tell("refused", fields{
			"job": refused.JobName, "code": codeName(refused.Code), "reason": refused.Reason, "message": refused.Details,
		})
		return exitRefused, err
	default:
		return exitBadSettings, err
	}
}

// obeyLine does what a line says.
func (d *driven) obeyLine(line []byte) {
	var one command
	if err := json.Unmarshal(line, &one); err != nil {
		slog.Error("command refused", "command", string(line), "error", err)
		os.Exit(exitOther)
	}
	d.obey(one)
}

// obey does what a command says, other than run.
func (d *driven) obey(given command) {
	switch given.Command {
	case "stop":
		d.stop(given)
		return
	case "behave":
		d.behave(given)
	case "release":
		d.release(given)
	case "progress":
		d.progress(given)
	case "hold_callbacks":
		d.holdCallbacks(given.Kinds)
	case "release_callbacks":
		d.releaseCallbacks()
	case "trigger":
		trigger(given.Job)
	case "lock":
		d.lock(given.lockGiven)
	case "unlock":
		d.unlock(given.lockGiven)
	case "stand":
		d.stand(given)
	case "resign":
		d.resign(given)
	case "observe":
		go observe(sidekeeper.ObserveRequest{Name: given.Name, Path: given.Path})
	default:
		slog.Error("no such command: " + given.Command)
		os.Exit(exitOther)
	}
	tell("done", fields{"command": given.Command})
}

func trigger(job string) {
	result, err := sidekeeper.Trigger(context.Background(), job)
	var failure *sidekeeper.TriggerError
	switch {
	case err == nil:
		tell("triggered", fields{"instances": slices.Sorted(slices.Values(
			append(result.TriggeredInstanceIDs, result.PendingInstanceIDs...),
		))})
	case errors.As(err, &failure):
		tell("trigger_failed", fields{"code": codeName(failure.Code), "reason": failure.Reason})
	default:
		slog.Error(err.Error())
	}
}

// codeName returns a status as the protocol spells it.
func codeName(code codes.Code) string {
	if name, ok := statusNames[code]; ok {
		return name
	}
	return code.String()
}
