package sidekeeper

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// maxFailureBytes is the longest failure message, in bytes of UTF-8; the sidecar refuses longer ones.
	maxFailureBytes = 16 * 1024
	// maxSummaryBytes is how much of it a panic's own text may take; the rest is for the stack, which says where.
	maxSummaryBytes = 4 * 1024

	cut = "\n[...]\n"
)

// outcome is how an execution ended, as it is reported.
type outcome struct {
	kind    sidekeeperv1.ExecutionOutcome
	message string
}

func succeeded() outcome {
	return outcome{kind: sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_SUCCESS}
}

// failed: the item was begun and failed.
func failed(message string) outcome {
	return outcome{sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_FAILURE, head(message, maxFailureBytes)}
}

// rejected: the item was not begun.
func rejected(message string) outcome {
	return outcome{sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_REJECTED, head(message, maxFailureBytes)}
}

// interrupted: the item was stopped or not begun because another instance might have owned it; it may be executed again.
func interrupted(message string) outcome {
	return outcome{sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_INTERRUPTED, head(message, maxFailureBytes)}
}

// isInterruption returns whether a reason says nothing of the execution itself: another instance may own its item.
func (r CancelReason) isInterruption() bool {
	return r == CancelLeaseLost || r == CancelDetached
}

func neverBegan(reason CancelReason) outcome {
	message := "cancelled before it began: " + reason.String()
	if reason.isInterruption() {
		return interrupted(message)
	}
	return rejected(message)
}

// forLevel returns the same for a sidecar of this API level: one that does not know interruptions takes them for
// failures.
func (o outcome) forLevel(level uint32) outcome {
	if o.kind == sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_INTERRUPTED && level < levelOfInterruptions {
		return failed(o.message)
	}
	return o
}

// outcomeOf returns the outcome of a handler's error.
func outcomeOf(execution *Execution, err error) outcome {
	if err == nil {
		return succeeded()
	}
	var rejection *RejectError
	if errors.As(err, &rejection) {
		return rejected(rejection.Reason)
	}
	reason, cancelled := execution.Cancelled()
	if cancelled && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return failed("cancelled: " + reason.String())
	}
	return failed(err.Error())
}

// outcomeOfPanic returns the outcome of a panic. It is to be called where the panic is recovered, on its goroutine.
func outcomeOfPanic(value any) outcome {
	summary := head(fmt.Sprintf("panic: %v", value), maxSummaryBytes)
	return failed(summary + "\n" + stackOfPanic(string(debug.Stack())))
}

// stackOfPanic removes the frames of the recovery from a stack: all above the frames of panic itself.
func stackOfPanic(stack string) string {
	lines := strings.Split(strings.TrimSpace(stack), "\n")
	for index := len(lines) - 1; index >= 0; index-- {
		if strings.HasPrefix(lines[index], "panic(") && index+2 <= len(lines) {
			return strings.Join(lines[min(index+2, len(lines)):], "\n")
		}
	}
	return strings.Join(lines, "\n")
}

// head returns the beginning of a text, valid as UTF-8, of at most limit bytes.
func head(text string, limit int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= limit {
		return text
	}
	end := limit - len(cut)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cut
}
