package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// envBundle is the environment variable with the bundle, in JSON.
const envBundle = "PANNIER_HANDOVER"

// Outcome is how the last attempt to replace an agent's program ended.
type Outcome struct {
	// Attempt names it.
	Attempt string    `json:"attempt"`
	At      time.Time `json:"at"`
	// From and To are the programs' versions.
	From string `json:"from"`
	To   string `json:"to"`
	// Error is why the program of before goes on; empty: it was replaced.
	Error string `json:"error,omitempty"`
}

// bundle is what a program tells the next one. The descriptors are open in it.
type bundle struct {
	Files   []passed `json:"files"`
	Outcome *Outcome `json:"outcome,omitempty"`
	// Report is the descriptor for the reports of a trial; 0: the program replaces the one before.
	Report int `json:"report,omitempty"`
}

// passed is a socket or a file.
type passed struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"` // as configured
	FD      int    `json:"fd"`
	// Activated: the service manager listens too, and the socket's file is its own.
	Activated bool `json:"activated,omitempty"`
}

// variable is the bundle as a variable of the environment.
func (b bundle) variable() (string, error) {
	text, err := json.Marshal(b)
	return envBundle + "=" + string(text), err
}

// Inheritance is what the program before has handed over.
type Inheritance struct {
	// Outcome of the attempt that started this program.
	Outcome *Outcome
	sockets []kept
	trial   *reporter
}

// Tried reports whether this program only shows that it would come up.
func (i *Inheritance) Tried() bool { return i != nil && i.trial != nil }

// Inherit returns what the program before has handed over, once; nil: nothing. No other process has the agent's data
// open then.
func Inherit() (in *Inheritance, err error) {
	text, ok := os.LookupEnv(envBundle)
	if !ok {
		return nil, nil //nolint:nilnil // there need not be any
	}
	if err := os.Unsetenv(envBundle); err != nil {
		return nil, err
	}
	var b bundle
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return nil, fmt.Errorf("read what the program before has handed over: %w", err)
	}
	in = &Inheritance{Outcome: b.Outcome}
	defer func() {
		for n := 0; err != nil && n < len(in.sockets); n++ {
			_ = in.sockets[n].file.Close() // the agent does not start
		}
	}()
	for _, p := range b.Files {
		file, err := own(p.FD)
		if err != nil {
			return in, err
		}
		in.sockets = append(in.sockets, kept{passed: p, file: file})
	}
	if b.Report != 0 {
		report, err := own(b.Report)
		if err == nil {
			in.trial = newReporter(report)
		}
		return in, err
	}
	return in, reap()
}

// own makes a descriptor of the program before one of this program, which its children do not inherit. One that they
// would not inherit, or is not open, was not handed over.
func own(fd int) (*os.File, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 || fd < firstFD {
		return nil, fmt.Errorf("the program before has not handed over the descriptor %d that it names", fd)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "handover"), nil
}

// reap waits for the children of the program before, such as plugins, when they end: nobody else does.
func reap() error {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return err
	}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			return fmt.Errorf("find the children of the program before: %w", err)
		}
		for text := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			go awaitEnd(pid) // it ends with the child, or this process
		}
	}
	return nil
}

// awaitEnd waits until a child has ended: all its files are closed then.
func awaitEnd(pid int) {
	var info unix.Siginfo
	for errors.Is(unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED, nil), unix.EINTR) {
	}
}

// Exec replaces this program by another one, with the same arguments, which gets the sockets and locks. Their servers
// are closed. more is added to the environment. It returns only if it fails, or if ctx has ended; then Exec may be
// called again. From then on a signal to stop ends the process.
func (s *Sockets) Exec(ctx context.Context, program string, o Outcome, more ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := bundle{Outcome: &o}
	for _, k := range s.all() {
		k.FD = int(k.file.Fd())
		if _, err := unix.FcntlInt(uintptr(k.FD), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("hand over a descriptor: %w", err)
		}
		b.Files = append(b.Files, k.passed)
	}
	told, err := b.variable()
	if err != nil {
		return err
	}
	// Until the next program handles them, a hangup would end the process, and a signal to stop is to end it: one that is
	// caught now would not reach the next program.
	signal.Ignore(syscall.SIGHUP)
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	if ctx.Err() != nil {
		return fmt.Errorf("before %s was executed: %w", program, context.Cause(ctx))
	}
	if err := syscall.Exec(program, os.Args, append(append(os.Environ(), more...), told)); err != nil {
		return fmt.Errorf("execute %s: %w", program, err)
	}
	return nil
}
