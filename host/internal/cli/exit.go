package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/sdk/api"
)

// The exit codes. `workload run` gives its program's own code instead, or one of
// launch's when the program did not run.
const (
	ExitOK = 0
	// ExitError is every failure that has no code of its own.
	ExitError = 1
	// ExitUsage is a wrong command line or an invalid spec.
	ExitUsage = 2
	// ExitNotFound is a volume, driver, workload or snapshot that does not exist.
	ExitNotFound = 3
	// ExitRefused is a request that the agent refuses in the present state: held, in use,
	// exists already, not allowed.
	ExitRefused = 4
	// ExitUnreachable is an agent that cannot be reached.
	ExitUnreachable = 5
)

// usageError is a wrong command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// Usage is an error of the command line, which exits with ExitUsage.
func Usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// Hinted adds what to do next to an error.
func Hinted(err error, format string, args ...any) error {
	return &hintError{err, fmt.Sprintf(format, args...)}
}

// Coded gives an error an exit code.
func Coded(code int, err error) error { return &codeError{err, code} }

// Silent exits with a code and without a message, because all is reported.
func Silent(code int) error { return silentExit(code) }

// hintError adds what to do next to an error.
type hintError struct {
	error
	hint string
}

func (e *hintError) Unwrap() error { return e.error }

// codeError is an error with an exit code of its own.
type codeError struct {
	error
	code int
}

func (e *codeError) Unwrap() error { return e.error }

// silentExit ends the command with a code and no message, because all is reported.
type silentExit int

func (e silentExit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// report prints an error and returns its exit code. command is whose error it is; empty: it is not known.
func (a *App) report(err error, command string) int {
	if silent := silentExit(0); errors.As(err, &silent) {
		return int(silent)
	}
	code, hint := classify(err)
	if command != "" && errors.As(err, new(*usageError)) && !errors.As(err, new(*codeError)) {
		hint = fmt.Sprintf("see %s -h", command)
	}
	if problems := config.Problems(nil); errors.As(err, &problems) {
		for line := range strings.Lines(problems.Error()) {
			a.Note("%s", strings.TrimSuffix(line, "\n"))
		}
	} else {
		a.Note("error: %s", message(err))
	}
	if hinted := (*hintError)(nil); errors.As(err, &hinted) {
		hint = hinted.hint
	}
	// The agent's own advice is more specific.
	if hint != "" && !a.NoHints && !strings.Contains(message(err), ": pannier ") {
		a.Note("%s", hint)
	}
	return code
}

// message is the error's text without connect's code in front.
func message(err error) string {
	if unreachable := (*api.UnreachableError)(nil); errors.As(err, &unreachable) {
		return unreachable.Error()
	}
	if answer := (*connect.Error)(nil); errors.As(err, &answer) {
		return strings.Replace(err.Error(), answer.Error(), answer.Message(), 1)
	}
	return err.Error()
}

// classify returns an error's exit code, and general advice for its kind.
func classify(err error) (code int, hint string) {
	if withCode := (*codeError)(nil); errors.As(err, &withCode) {
		return withCode.code, ""
	}
	if errors.As(err, new(*usageError)) {
		return ExitUsage, ""
	}
	if problems := config.Problems(nil); errors.As(err, &problems) {
		return ExitUsage, "nothing was changed; correct the file and try again"
	}
	if unreachable := (*api.UnreachableError)(nil); errors.As(err, &unreachable) {
		return ExitUnreachable, ""
	}
	answer := (*connect.Error)(nil)
	if !errors.As(err, &answer) {
		if errors.Is(err, context.Canceled) {
			return ExitError, "interrupted"
		}
		return ExitError, ""
	}
	if lost(err) {
		return ExitUnreachable, "the connection was lost: see the agent's log, and try again"
	}
	switch answer.Code() {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return ExitUsage, "nothing was changed; correct it and try again"
	case connect.CodeNotFound:
		return ExitNotFound, ""
	case connect.CodeFailedPrecondition, connect.CodeAlreadyExists, connect.CodeAborted, connect.CodePermissionDenied,
		connect.CodeUnauthenticated:
		return ExitRefused, ""
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted:
		return ExitError, "this may be temporary: try again; pannier status shows what is down"
	case connect.CodeUnimplemented:
		return ExitError,
			"the agent or the driver cannot do this; over TCP an agent answers health, metrics and public keys only"
	case connect.CodeCanceled:
		return ExitError, "interrupted"
	default:
		return ExitError, "see the agent's log and pannier events"
	}
}

// lost reports whether the connection broke during a call, so that the error is not the agent's answer.
func lost(err error) bool {
	answer := (*connect.Error)(nil)
	if !errors.As(err, &answer) || connect.IsWireError(err) || errors.As(err, new(*api.NodeError)) {
		return false
	}
	switch answer.Code() {
	case connect.CodeDeadlineExceeded, connect.CodeUnimplemented:
		return false
	case connect.CodeCanceled: // connect uses it for these errors too
		return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	}
	return true
}

// exists explains an error if it says that a file is there.
func exists(err error, path, hint string) error {
	if errors.Is(err, fs.ErrExist) {
		return Hinted(Coded(ExitRefused, fmt.Errorf("%s already exists", path)), "%s", hint)
	}
	return err
}

// hint adds what to do next to an error with this exit code.
func hint(err error, code int, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if got, _ := classify(err); got != code {
		return err
	}
	return Hinted(err, format, args...)
}
