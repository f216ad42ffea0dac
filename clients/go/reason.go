package sidekeeper

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reasonDomain is the domain of the reasons that ErrorReason lists.
const reasonDomain = "sidekeeper"

// Reasons that the client acts on, or gives itself, as in ErrorReason without the prefix.
const (
	reasonStoppedByOperator = "STOPPED_BY_OPERATOR"
	reasonJobRemoved        = "JOB_REMOVED"
	reasonSidecarTooOld     = "SIDECAR_TOO_OLD"
)

// reasonOf returns why the sidecar has refused a call or ended a stream. Empty: it has given no reason.
func reasonOf(told *status.Status) string {
	for _, detail := range told.Details() {
		if info, is := detail.(*errdetails.ErrorInfo); is && info.GetDomain() == reasonDomain {
			return info.GetReason()
		}
	}
	return ""
}

// isOperators returns whether a stream that was attached and has ended so was ended by an operator. Without a reason, too:
// an older sidecar says it with the code alone.
func isOperators(told *status.Status) bool {
	if told.Code() != codes.FailedPrecondition {
		return false
	}
	switch reasonOf(told) {
	case reasonStoppedByOperator, reasonJobRemoved, "":
		return true
	default:
		return false
	}
}

// nobodyAnswers returns whether a call has failed because there is no sidecar. One that says UNAVAILABLE gives a reason.
func nobodyAnswers(told *status.Status) bool {
	return told.Code() == codes.Unavailable && reasonOf(told) == ""
}
