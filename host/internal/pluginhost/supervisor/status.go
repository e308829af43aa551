package supervisor

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/errcode"
)

// The errors of Acquire.
var (
	// ErrUnknown means that the plugin is neither in the plugin directory nor in the configuration.
	ErrUnknown = errcode.NotFound.New("no such plugin")
	// ErrUnavailable means that the plugin did not come up before the caller's context ended.
	ErrUnavailable = errors.New("plugin is not available")
	// ErrClosed means that the supervisor is closed.
	ErrClosed = errcode.Unavailable.New("the plugin supervisor is closed")
)

// State of a plugin.
type State string

// The states.
const (
	Starting   State = "starting"
	Running    State = "running"
	Unhealthy  State = "unhealthy"   // runs and takes calls, but reports that it is unhealthy
	BackingOff State = "backing-off" // ended or did not start; tried again at NextTry
	Failed     State = "failed"      // like BackingOff, but an operator must change something first
	Stopped    State = "stopped"
)

// Status is a snapshot of a plugin.
type Status struct {
	Name       string
	State      State
	Kind       string // such as "storage.v1"; known once the plugin has come up
	Version    string
	SHA256     string
	PID        int
	Generation uint64
	StartedAt  time.Time
	Restarts   int // by this host, after an unexpected end
	Users      int // callers that hold the current generation
	// Calls are those that the current generation has answered, and FailedCalls how many of them failed with
	// Internal, Unknown, DeadlineExceeded, or Unimplemented if the generation before had the method.
	Calls, FailedCalls int
	// Degraded says in what the current generation fails more calls than the one before it; empty: in nothing.
	Degraded  string
	Canary    *Canary // nil: there is none
	Message   string
	LastError string    // why it last ended, did not start, or was not replaced by what is in its file
	NextTry   time.Time // when it is started again, if BackingOff or Failed
	Draining  int       // old generations that still finish their calls
	LastGood  string    // the copy that served before; empty: none
	Pinned    string    // the only copy that may run; empty: any
	// Versions are the copies that are kept, and the files that are not one of them, as Version says.
	Versions []Version
	// FileProblem says what is wrong with the plugin's files in the plugin directory; empty: nothing.
	FileProblem string
	// Mend is the command that mends FileProblem or, while there is no process, LastError; empty: no single one does.
	Mend string
	// Missing is true if it is configured, and has neither an executable file nor a process.
	Missing bool
	// ConfigProblem explains why a changed configuration is not used, but the one before it; empty: it is used.
	ConfigProblem string
	// DebuggedAt is the socket of the process that gets its calls, which its author debugs; empty: none.
	DebuggedAt string
	// DuplicateOf is the plugin that this one is another file of: it does not run. Empty: none.
	DuplicateOf string
	// Refused are the copies that are not tried again until their file changes, with the reason.
	Refused map[string]string
	Swaps   []Swap // the newest last
}

// EventType says what happened to a plugin.
type EventType string

// The types of events.
const (
	EventStarted       EventType = "started"
	EventReattached    EventType = "reattached"
	EventStopped       EventType = "stopped"
	EventEnded         EventType = "ended"        // the process or its health stream is gone
	EventFailed        EventType = "start-failed" // it did not come up
	EventHealthy       EventType = "healthy"
	EventUnhealthy     EventType = "unhealthy"
	EventDegraded      EventType = "degraded" // it fails more calls than the generation before
	EventSwapped       EventType = "swapped"
	EventRestarted     EventType = "restarted"      // by an operator
	EventSwapFailed    EventType = "swap-failed"    // callers keep the old process
	EventConfigRefused EventType = "config-refused" // a changed configuration; the one before it is used
	EventRolledBack    EventType = "rolled-back"
	EventCanary        EventType = "canary"       // another process gets a part of the calls
	EventCanaryEnded   EventType = "canary-ended" // it gets no calls any more, and is not promoted
	EventPromoted      EventType = "promoted"     // a canary serves now
	EventFile          EventType = "file-problem" // its file is missing, not executable, incomplete, or of another plugin
	EventRemoved       EventType = "removed"      // by an operator
)

// Event is something that happened to a plugin.
type Event struct {
	Time    time.Time
	Type    EventType
	Message string // one line for people
	Status  Status // after the event
}

// unavailable is the error of a caller whose context ended before the plugin was up.
type unavailable struct {
	status Status
	cause  error // the context's
}

func (e *unavailable) Error() string {
	msg := fmt.Sprintf("plugin %q is not available: it is %s", e.status.Name, e.status.State)
	if !e.status.NextTry.IsZero() {
		msg += " and is tried again at " + e.status.NextTry.Format(time.TimeOnly)
	}
	if e.status.LastError != "" {
		msg += ": " + e.status.LastError
	}
	return msg
}

func (e *unavailable) Unwrap() []error { return []error{ErrUnavailable, e.cause} }

// GRPCStatus makes status.Code return Unavailable.
func (e *unavailable) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}
