// Package driver makes the calls to CSI drivers: it has one connection for each endpoint, and gives each call its
// deadline, its retries, its place in the queue of its volume, its log line and its error text. It does not know
// what the operations mean; that is package bridge's task.
//
// Invariants:
//   - an RPC is made only inside Conn.Do, so none is without a deadline;
//   - at most one operation for a volume is in flight (CSI spec, "Concurrency");
//   - no secret of a request is in a log or in an error.
package driver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// Op is one operation on a driver, with the names for its messages.
type Op struct {
	RPC        RPC
	Driver     string // its id in the host
	Object     string // the volume's or snapshot's name; empty when there is none
	ExternalID string // the object's id in the driver, if it has one yet
	// Key identifies the object on which at most one operation may run at a time: a volume's external id, or the
	// name of a volume that is being made. Empty: no limit.
	Key      string
	Redactor Redactor
	Timeout  time.Duration // of an RPC of the class ask; 0: Timing.Ask
}

// Do runs op under the policy of its RPC. attempt makes the RPC. It builds a new request each time, since the
// request may depend on the driver's capabilities and the driver may have been replaced meanwhile. The error
// is a gRPC status that says what was tried, on what, what the driver answered and what can be done;
// DeadlineExceeded means that the outcome is unknown. When ctx ends, Do returns at once; an RPC that changes the
// object is not cancelled by that, since the driver may be doing it all the same, and the next operation on the object
// waits until it has ended.
func Do[T any](ctx context.Context, c *Conn, op Op, attempt func(context.Context) (T, error)) (T, error) {
	var none T
	unlock := func() {}
	if op.Key != "" {
		var err error
		if unlock, err = c.locks.Lock(ctx, op.Key); err != nil {
			return none, op.errorf(status.FromContextError(ctx.Err()).Code(),
				"gave up while another call on it was in flight; the driver was not called")
		}
	}
	type outcome struct {
		result T
		err    error
	}
	ended := make(chan outcome, 1)
	release := c.hold()
	r := &run{conn: c, op: op, caller: ctx, started: time.Now()}
	go func() {
		defer release()
		defer unlock()
		result, err := do(ctx, r, attempt)
		ended <- outcome{result, err}
	}()
	select {
	case o := <-ended:
		return o.result, o.err
	case <-ctx.Done():
	}
	if op.RPC.class.changes && r.inFlight.Load() {
		return none, op.errorf(status.FromContextError(ctx.Err()).Code(),
			"stopped by the caller while %s was in flight; %s", path.Base(op.RPC.method), unknownOutcome)
	}
	o := <-ended
	return o.result, o.err
}

// do makes r's attempts until one has answered or ctx has ended.
func do[T any](ctx context.Context, r *run, attempt func(context.Context) (T, error)) (T, error) {
	var none T
	ctx, cancel := context.WithTimeout(ctx, r.budget())
	defer cancel()
	calls, cancel := ctx, func() {}
	if r.op.RPC.class.changes {
		calls, cancel = context.WithTimeout(context.WithoutCancel(ctx), r.budget())
	}
	defer cancel()
	result, err := backoff.Retry(ctx, func() (T, error) {
		r.inFlight.Store(true)
		defer r.inFlight.Store(false)
		base := calls
		if err := ctx.Err(); err != nil {
			if r.attempts > 0 {
				return none, backoff.Permanent(err)
			}
			base = ctx // it is not sent
		}
		ctx, cancel := context.WithTimeout(base, r.limit())
		defer cancel()
		r.attempts++
		result, err := attempt(withCall(ctx, &call{op: &r.op, attempt: r.attempts}))
		return result, r.judge(err)
	}, backoff.WithBackOff(r.conn.timing.backOff()), backoff.WithMaxElapsedTime(0))
	if err == nil {
		return result, nil
	}
	if failed := (*callError)(nil); errors.As(r.last, &failed) && failed.sent {
		return none, sdk.Relayed(r.explain()) // the driver's, even if it never answered
	}
	return none, r.explain()
}

// backOff is unbounded, because the budget's context ends it.
func (t Timing) backOff() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = t.Backoff, t.BackoffMax
	b.RandomizationFactor, b.Multiplier = 0.5, 2
	return b
}

// run is the state of one Do.
type run struct {
	conn     *Conn
	op       Op
	caller   context.Context
	started  time.Time
	attempts int
	// exhausted counts the last answers that were ResourceExhausted.
	exhausted int
	last      error
	// hung is true if an attempt has timed out; the next ones may take all the time that is left.
	hung bool
	// uncertain is true if the operation's own RPC was sent and its outcome is unknown.
	uncertain bool
	inFlight  atomic.Bool // an attempt is being made
}

// callerMargin is what an operation leaves of its caller's deadline for its own error to arrive, at most.
const callerMargin = 5 * time.Second

func (r *run) budget() time.Duration {
	switch deadline, ok := r.caller.Deadline(); {
	case r.op.RPC.class.callers && ok:
		left := deadline.Sub(r.started)
		return left - min(left/10, callerMargin)
	case r.op.RPC.class.budgeted:
		return r.conn.timing.Budget
	case r.op.Timeout > 0:
		return r.op.Timeout
	}
	return r.conn.timing.Ask
}

func (r *run) limit() time.Duration {
	if r.op.RPC.class.budgeted && !r.op.RPC.class.whole && !r.hung {
		return r.conn.timing.Attempt
	}
	return r.budget()
}

// judge records how an attempt ended and reports whether to retry.
func (r *run) judge(err error) error {
	if err == nil {
		return nil
	}
	code := status.Code(err)
	// Use the code to detect a timeout, not the context: the driver's clock, or gRPC's check of the deadline, may
	// be slightly ahead.
	timedOut := code == codes.DeadlineExceeded
	r.hung = r.hung || timedOut
	var failed *callError
	errors.As(err, &failed)
	if failed != nil && failed.method == r.op.RPC.method && r.op.RPC.class.changes {
		r.uncertain = r.uncertain || failed.uncertain()
	}
	// An attempt that timed out before it was sent tells less than the one before it.
	if nothing := failed != nil && !failed.sent && (timedOut || code == codes.Canceled); r.last == nil || !nothing {
		r.last = err
	}
	if code == codes.ResourceExhausted {
		r.exhausted++
	} else {
		r.exhausted = 0
	}
	if !r.op.RPC.retries(code) || r.exhausted >= maxExhausted {
		return backoff.Permanent(err)
	}
	r.reportRetries()
	return err
}

// maxExhausted is after how many answers of ResourceExhausted in a row the call fails. A driver that limits the rate
// of its calls accepts one of them; space and attachments that have run out stay so for longer than a caller waits.
const maxExhausted = 5

// reportRetries emits an event at the second failed attempt, the fourth, the eighth and so on.
func (r *run) reportRetries() {
	if r.attempts < 2 || r.attempts&(r.attempts-1) != 0 || !r.op.RPC.class.budgeted {
		return
	}
	sdk.Emit(sdk.Event{
		Type: storage.EventRetries, Subject: r.op.Driver,
		Message: fmt.Sprintf("%s; it is tried again, for %s in all", status.Convert(r.explain()).Message(), r.budget()),
		Details: map[string]string{
			storage.DetailVolume: r.op.ExternalID, "rpc": path.Base(r.op.RPC.method), "attempts": strconv.Itoa(r.attempts),
		},
	})
}

// stopped is true if the caller's context ended the run, rather than an answer.
func (r *run) stopped() bool {
	var failed *callError
	final := errors.As(r.last, &failed) && failed.answered && !r.op.RPC.retries(failed.status.Code())
	return r.caller.Err() != nil && !final
}

// code returns the code of a failed run. A run without a final answer is DeadlineExceeded if the driver may have
// done the work.
func (r *run) code() codes.Code {
	last := status.Code(r.last)
	switch {
	case r.stopped():
		return status.FromContextError(r.caller.Err()).Code()
	case r.uncertain && r.op.RPC.retries(last):
		return codes.DeadlineExceeded
	}
	return last
}

// unknownOutcome explains to an operator a call whose answer never came.
const unknownOutcome = "the outcome is unknown: the driver may have done it, or may still be doing it; make the opposite call to be sure"

// hints tell an operator what to do about a driver's answer.
var hints = map[codes.Code]string{
	codes.InvalidArgument:    "the driver does not accept these arguments: check the volume's parameters, context, capability and mount options",
	codes.NotFound:           "the driver does not know it: check the external id, and whether someone else has deleted it",
	codes.AlreadyExists:      "it exists with other arguments: undo that first, or ask for the same",
	codes.FailedPrecondition: "something else must change first, such as another user of the volume that has to end",
	codes.OutOfRange:         "the driver cannot provide that size: change the capacity",
	codes.Unimplemented:      "the driver cannot do this",
	codes.PermissionDenied:   "the volume's secrets do not permit it: check them and the driver's permissions",
	codes.Unauthenticated:    "the volume's secrets were not accepted: check them",
	codes.ResourceExhausted:  "the driver has run out of space or of attachments",
	codes.Aborted:            "the driver has another operation pending on it: wait and try again",
}

// explain returns the error of a failed run. It has a gRPC status and no secret.
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
		b.WriteString("; the driver's log has more")
	}
	return r.op.errorf(r.code(), "%s", b.String())
}

// outcome writes how the last attempt ended, and returns whether the driver answered.
func (r *run) outcome(b *strings.Builder) (answered bool) {
	var failed *callError
	if !errors.As(r.last, &failed) { // the bridge's own refusal
		b.WriteString(status.Convert(r.last).Message())
		return false
	}
	rpc, text := path.Base(failed.method), Words(failed.status.Message(), r.op.Redactor)
	switch {
	case failed.died:
		b.WriteString(text)
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

// dialError prefers the system's error text to gRPC's wrapping of it.
func (c *Conn) dialError(text string) string {
	if err := c.lastDial.Load(); err != nil && strings.Contains(text, (*err).Error()) {
		return (*err).Error()
	}
	return text
}

// errorf returns a status error that names the operation, its object and its driver.
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

// class is the retry policy of a group of calls:
//
//	class  | deadline                          | retried on
//	ask    | 5 s (Probe: what the caller sets) | never: the fingerprint asks again
//	change | 2 m in all                        | Unavailable, DeadlineExceeded, Aborted, ResourceExhausted (5 attempts)
//	mount  | its caller's, else 2 m in all     | the same; an attempt may take all of it
//	umount | its caller's, else 2 m in all     | the same
//	read   | 2 m in all                        | the same
//	list   | 2 m in all                        | the same without Aborted
type class struct {
	budgeted bool // within Timing.Budget in all; otherwise Timing.Ask
	changes  bool // without an answer, the resulting state is unknown
	callers  bool // the caller's deadline is in place of Timing.Budget
	whole    bool // an attempt is not bounded by Timing.Attempt: a call that is cut off may still mount, later
	retry    []codes.Code
}

var (
	ask    = &class{}
	change = &class{budgeted: true, changes: true, retry: passing}
	mount  = &class{budgeted: true, changes: true, callers: true, whole: true, retry: passing}
	umount = &class{budgeted: true, changes: true, callers: true, retry: passing}
	read   = &class{budgeted: true, retry: passing}
	// For a list Aborted means that starting_token is not valid, and a retry would not help (CSI spec,
	// "ListVolumes Errors").
	list = &class{budgeted: true, retry: []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted}}
)

// changeWithoutRoom is change for a driver without room, which waiting does not make.
var changeWithoutRoom = &class{
	budgeted: true, changes: true, retry: []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted},
}

// passing are the codes of temporary errors. Aborted means that an operation on the volume is pending (CSI spec,
// "Error Scheme").
var passing = []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted}

// RPC is one of CSI's calls with its policy.
type RPC struct {
	method string // full gRPC name
	does   string // in messages, before the name of the object
	class  *class
}

// The RPCs that the bridge makes.
var (
	Probe                 = RPC{csi.Identity_Probe_FullMethodName, "probe", ask}
	GetPluginInfo         = RPC{csi.Identity_GetPluginInfo_FullMethodName, "read the identity", ask}
	GetPluginCapabilities = RPC{csi.Identity_GetPluginCapabilities_FullMethodName, "read the capabilities", ask}
	GetControllerCaps     = RPC{
		csi.Controller_ControllerGetCapabilities_FullMethodName,
		"read the controller's capabilities", ask,
	}
	GetNodeCaps = RPC{csi.Node_NodeGetCapabilities_FullMethodName, "read the node's capabilities", ask}
	GetNodeInfo = RPC{csi.Node_NodeGetInfo_FullMethodName, "read the node's id", ask}

	CreateVolume = RPC{csi.Controller_CreateVolume_FullMethodName, "create volume", change}
	// CreateWithoutRoom is CreateVolume at a driver that has said that it has no room for it.
	CreateWithoutRoom   = RPC{csi.Controller_CreateVolume_FullMethodName, "create volume", changeWithoutRoom}
	DeleteVolume        = RPC{csi.Controller_DeleteVolume_FullMethodName, "delete volume", change}
	AttachVolume        = RPC{csi.Controller_ControllerPublishVolume_FullMethodName, "attach volume", change}
	DetachVolume        = RPC{csi.Controller_ControllerUnpublishVolume_FullMethodName, "detach volume", change}
	ValidateVolume      = RPC{csi.Controller_ValidateVolumeCapabilities_FullMethodName, "validate volume", read}
	ExpandVolume        = RPC{csi.Controller_ControllerExpandVolume_FullMethodName, "expand volume", change}
	CreateSnapshot      = RPC{csi.Controller_CreateSnapshot_FullMethodName, "create snapshot", change}
	DeleteSnapshot      = RPC{csi.Controller_DeleteSnapshot_FullMethodName, "delete snapshot", change}
	ModifyVolume        = RPC{csi.Controller_ControllerModifyVolume_FullMethodName, "modify volume", change}
	GetVolume           = RPC{csi.Controller_ControllerGetVolume_FullMethodName, "read volume", read}
	CreateGroupSnapshot = RPC{
		csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName,
		"create group snapshot", change,
	}
	DeleteGroupSnapshot = RPC{
		csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName,
		"delete group snapshot", change,
	}
	GetGroupSnapshot = RPC{csi.GroupController_GetVolumeGroupSnapshot_FullMethodName, "read group snapshot", read}
	GetCapacity      = RPC{csi.Controller_GetCapacity_FullMethodName, "read the capacity", read}
	ListVolumes      = RPC{csi.Controller_ListVolumes_FullMethodName, "list volumes", list}
	ListSnapshots    = RPC{csi.Controller_ListSnapshots_FullMethodName, "list snapshots", list}

	StageVolume      = RPC{csi.Node_NodeStageVolume_FullMethodName, "stage volume", mount}
	UnstageVolume    = RPC{csi.Node_NodeUnstageVolume_FullMethodName, "unstage volume", umount}
	PublishVolume    = RPC{csi.Node_NodePublishVolume_FullMethodName, "publish volume", mount}
	UnpublishVolume  = RPC{csi.Node_NodeUnpublishVolume_FullMethodName, "unpublish volume", umount}
	ExpandNodeVolume = RPC{csi.Node_NodeExpandVolume_FullMethodName, "expand mounted volume", change}
	VolumeStats      = RPC{csi.Node_NodeGetVolumeStats_FullMethodName, "read the statistics of volume", read}
	VolumeHealth     = RPC{csi.Node_NodeGetVolumeHealth_FullMethodName, "read the health of volume", read}
)

// retries reports whether the call is retried with the same arguments after code. Besides the codes that the spec
// forbids to retry, Internal and Unknown are not retried: the spec defines no recovery for them, drivers use them for
// any failure, and repeating a failed mount for two minutes does not help. The call's effect is then uncertain, and the
// host, which gets the error at once, repeats or reverses the call when it chooses.
func (r RPC) retries(code codes.Code) bool { return slices.Contains(r.class.retry, code) }

// Timing has the policy's time limits. Only tests change it.
type Timing struct {
	Ask    time.Duration // deadline of a call of the class ask
	Budget time.Duration // of a retried call, including all attempts and waits
	// Attempt bounds each attempt until one has timed out; from then on an attempt may take what is left of
	// Budget. So a driver that hung once is called again, and one that is only slow can still finish.
	Attempt    time.Duration
	Backoff    time.Duration // before the second attempt, ± half; doubles each time
	BackoffMax time.Duration
}

// DefaultTiming is what every build except tests uses.
var DefaultTiming = Timing{
	Ask:        5 * time.Second,
	Budget:     2 * time.Minute,
	Attempt:    30 * time.Second,
	Backoff:    100 * time.Millisecond,
	BackoffMax: 5 * time.Second,
}
