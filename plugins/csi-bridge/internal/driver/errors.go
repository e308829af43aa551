package driver

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unknownOutcome is what an operator, and the host's log, must know of a call
// whose answer never came.
const unknownOutcome = "the outcome is unknown: the driver may have done it, or may still be doing it; the opposite call makes sure"

// hints say what an operator can do about a driver's answer.
var hints = map[codes.Code]string{
	codes.InvalidArgument:    "the driver does not accept these arguments: check the volume's parameters, context, capability and mount options",
	codes.NotFound:           "the driver does not know it: check the external id, and whether it was deleted by someone else",
	codes.AlreadyExists:      "it exists with other arguments: undo that first, or ask for the same",
	codes.FailedPrecondition: "something else must change first, such as another user of the volume that has to end",
	codes.OutOfRange:         "the driver cannot give that size: change the capacity",
	codes.Unimplemented:      "the driver cannot do this",
	codes.PermissionDenied:   "the volume's secrets do not permit it: check them and the driver's rights",
	codes.Unauthenticated:    "the volume's secrets were not accepted: check them",
	codes.ResourceExhausted:  "the driver has run out of space or of attachments",
	codes.Aborted:            "the driver has another operation pending on it: wait and try again",
}

// explain is the error of a run that failed. It has a gRPC status and no secret.
func (r *run) explain() error {
	var b strings.Builder
	if r.stopped() {
		b.WriteString("stopped by the caller; last, ")
	}
	answered := r.outcome(&b)
	if r.attempts > 1 {
		fmt.Fprintf(&b, " (%d attempts in %s)", r.attempts, time.Since(r.started).Round(time.Millisecond))
	}
	switch hint := hints[status.Code(r.last)]; {
	case r.uncertain:
		b.WriteString("; " + unknownOutcome)
	case answered && hint != "":
		b.WriteString("; " + hint)
	case answered:
		b.WriteString("; the driver's log says more")
	}
	return r.op.errorf(r.code(), "%s", b.String())
}

// outcome writes how the last attempt ended, and tells whether it did so with
// an answer of the driver.
func (r *run) outcome(b *strings.Builder) (answered bool) {
	var failed *callError
	if !errors.As(r.last, &failed) { // the bridge's own refusal
		b.WriteString(status.Convert(r.last).Message())
		return false
	}
	rpc, text := path.Base(failed.method), r.op.Redactor.Text(failed.status.Message())
	switch {
	case failed.answered:
		fmt.Fprintf(b, "%s answered %s: %s", rpc, failed.status.Code(), text)
		return true
	case !failed.sent:
		fmt.Fprintf(b, `the driver cannot be reached at unix://%s: %s; see "pannier driver status %s"`,
			r.conn.path, r.conn.dialError(text), r.op.Driver)
	case failed.status.Code() == codes.DeadlineExceeded, failed.status.Code() == codes.Canceled:
		fmt.Fprintf(b, "%s was not answered in time", rpc)
	default:
		fmt.Fprintf(b, "the connection was lost before %s was answered: %s", rpc, text)
	}
	return false
}

// dialError prefers the system's own words to gRPC's wrapping of them.
func (c *Conn) dialError(text string) string {
	if err := c.lastDial.Load(); err != nil && strings.Contains(text, (*err).Error()) {
		return (*err).Error()
	}
	return text
}

// errorf makes a status error that names the operation, its object and its driver.
func (o Op) errorf(code codes.Code, format string, args ...any) error {
	var b strings.Builder
	b.WriteString(o.RPC.does)
	if o.Object != "" {
		fmt.Fprintf(&b, " %q", o.Object)
	}
	if o.ExternalID != "" && o.ExternalID != o.Object {
		fmt.Fprintf(&b, " (external id %q)", o.ExternalID)
	}
	fmt.Fprintf(&b, " on driver %q: ", o.Driver)
	fmt.Fprintf(&b, format, args...)
	return status.Error(code, b.String())
}
