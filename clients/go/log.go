package sidekeeper

import "log/slog"

// The fields of the library's records, the same in each language's client.
const (
	jobField       = "job"
	itemField      = "item"
	executionField = "execution_id"
)

// about returns the fields of a record about one execution, beside the job that the logger has.
func about(execution *Execution) slog.Attr {
	return slog.Group("", slog.Int(itemField, execution.Item), slog.String(executionField, execution.ExecutionID))
}
