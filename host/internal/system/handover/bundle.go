package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// envBundle is the environment variable with the number of the bundle's file descriptor.
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
	Agent   *Hello   `json:"agent,omitempty"` // of a rehearsal
	Files   []passed `json:"files"`
	Outcome *Outcome `json:"outcome,omitempty"`
}

// passed is a socket or a file.
type passed struct {
	Name    string       `json:"name"`
	Address string       `json:"address,omitempty"`
	FD      int          `json:"fd"`
	Conns   []passedConn `json:"conns,omitempty"`
	// Activated: the service manager listens too, and the socket's file is its own.
	Activated bool `json:"activated,omitempty"`
}

// passedConn is a parked connection.
type passedConn struct {
	FD   int    `json:"fd"`
	Read []byte `json:"read,omitempty"`
}

// inherited is a socket or file of the program before.
type inherited struct {
	passed
	fd    *os.File
	conns []parked
}

func (i inherited) close() {
	_ = i.fd.Close()
	for _, c := range i.conns {
		_ = c.fd.Close()
	}
}

// Inheritance is what the program before has handed over.
type Inheritance struct {
	// Outcome of the attempt that started this program.
	Outcome *Outcome
	// Agent is what the program says of itself that this one may replace, in a rehearsal.
	Agent     Hello
	rehearsal *Rehearsal
	sockets   []inherited
}

// Rehearses reports whether this program only shows that it would come up.
func (i *Inheritance) Rehearses() bool { return i != nil && i.rehearsal != nil }

// Inherit returns what the program before has handed over, once; nil: nothing. No other process has the agent's data
// open then.
func Inherit() (*Inheritance, error) {
	text, ok := os.LookupEnv(envBundle)
	if !ok {
		return nil, nil //nolint:nilnil // there need not be any
	}
	if err := os.Unsetenv(envBundle); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", envBundle, err)
	}
	file := own(fd)
	defer file.Close()
	var b bundle
	if err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<40)).Decode(&b); err != nil {
		return nil, fmt.Errorf("read what the program before has handed over: %w", err)
	}
	in := &Inheritance{Outcome: b.Outcome}
	for _, p := range b.Files {
		i := inherited{passed: p, fd: own(p.FD)}
		for _, c := range p.Conns {
			i.conns = append(i.conns, parked{own(c.FD), c.Read})
		}
		in.sockets = append(in.sockets, i)
	}
	if b.Agent != nil {
		in.Agent = *b.Agent
		in.rehearsal = newRehearsal(own(reportFD))
		return in, nil
	}
	return in, reap()
}

// own makes a descriptor of the program before one of this program, which its children do not inherit.
func own(fd int) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "handover")
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

// take returns duplicates of all sockets and locks.
func (s *Sockets) take() (all []inherited, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.listeners)) {
		l := s.listeners[name]
		fd, err := duplicate(l.Listener.(listening))
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, inherited{passed: passed{Name: name, Address: l.address, Activated: l.activated}, fd: fd})
	}
	for _, name := range slices.Sorted(maps.Keys(s.locks)) {
		fd, err := duplicate(s.locks[name])
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, inherited{passed: passed{Name: name}, fd: fd})
	}
	return all, nil
}

func closeAll(all []inherited) {
	for _, i := range all {
		i.close()
	}
}

// Kept are the sockets and locks of an agent, which stay open while its parts are closed.
type Kept struct {
	of  *Sockets
	all []inherited
}

// Keep keeps the sockets and locks open. They are frozen.
func (s *Sockets) Keep() (*Kept, error) {
	all, err := s.take()
	return &Kept{s, all}, err
}

// settleTime is how long connections may take to be parked.
const settleTime = time.Second

// Exec replaces this program by another one, with the same arguments, which gets what was kept. more is added to the
// environment. It returns only if it fails, or if ctx has ended; then Exec may be called again. From then on a signal
// to stop ends the process.
func (k *Kept) Exec(ctx context.Context, program string, o Outcome, more ...string) error {
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	b := bundle{Outcome: &o}
	var fds []int
	for _, i := range k.all {
		i.FD = int(i.fd.Fd())
		fds = append(fds, i.FD)
		if l := k.of.listeners[i.Name]; l != nil {
			l.settle(settling) // what is not parked ends here
			l.mu.Lock()
			for _, c := range l.waits {
				fd := int(c.fd.Fd())
				fds = append(fds, fd)
				i.Conns = append(i.Conns, passedConn{fd, c.read})
			}
			l.mu.Unlock()
		}
		b.Files = append(b.Files, i.passed)
	}
	file, err := b.file()
	if err != nil {
		return err
	}
	defer file.Close()
	fds = append(fds, int(file.Fd()))
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("hand over a descriptor: %w", err)
		}
	}
	// Until the next program handles them, a hangup would end the process, and a signal to stop is to end it: one that is
	// caught now would not reach the next program.
	signal.Ignore(syscall.SIGHUP)
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	if ctx.Err() != nil {
		return fmt.Errorf("before %s was executed: %w", program, context.Cause(ctx))
	}
	env := slices.Concat(os.Environ(), more, []string{envBundle + "=" + strconv.Itoa(int(file.Fd()))})
	if err := syscall.Exec(program, os.Args, env); err != nil {
		return fmt.Errorf("execute %s: %w", program, err)
	}
	return nil
}

// file writes the bundle into a file in memory.
func (b bundle) file() (*os.File, error) {
	fd, err := unix.MemfdCreate("pannier-handover", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file for what is handed over: %w", err)
	}
	f := os.NewFile(uintptr(fd), "handover")
	if err := json.NewEncoder(f).Encode(b); err != nil {
		return nil, errors.Join(fmt.Errorf("write what is handed over: %w", err), f.Close())
	}
	return f, nil
}
