package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/process"
)

// The files of a fence's folder.
const (
	socketFile = "fence.sock"
	lockFile   = "fence.lock"
	stateFile  = "state.json" // what it guards: another process of the fence goes on with it
	logFile    = "fence.log"
	reportFile = "fenced.json"
)

// ErrRunning says that the folder has a fence already.
var ErrRunning = errors.New("another fence runs for this folder")

const (
	// grace is how long a fence that was just started waits for its agent, before it
	// acts by what the fence before it knew: the agent may have a longer lease.
	grace = 2 * time.Second
	// idle is how long a fence without anything to guard waits for its agent.
	idle = time.Minute
	// The fence looks after its deadline whether something came back, such as a mount that a
	// driver was just making: often at first, and ever less.
	firstWatch, longestWatch = 250 * time.Millisecond, time.Second
	// busyPause lies between two rounds that have something to do.
	busyPause = 5 * time.Millisecond
)

// server is one fence.
type server struct {
	dir string
	log hclog.Logger

	mu      sync.Mutex
	state   State
	told    bool // the agent has said what it knows, or had the time to
	current net.Conn
	ending  bool

	changed chan struct{} // has something in it after a change
	conns   sync.WaitGroup
}

// Run is the whole life of a fence: it guards until its agent has no use for it, or ctx ends.
// dir is its folder, made by the agent (0700). Errors: ErrRunning.
func Run(ctx context.Context, dir string, log hclog.Logger) (err error) {
	lock, err := lockFolder(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := harden(); err != nil {
		log.Warn("the fence may be late on a machine that is very busy: not everything is permitted", "error", err)
	}
	s := &server{dir: dir, log: log, changed: make(chan struct{}, 1)}
	if s.state, err = loadState(dir); err != nil {
		return err
	}
	alarm, err := newAlarm()
	if err != nil {
		return err
	}
	defer alarm.close()
	listener, err := listen(dir)
	if err != nil {
		return err
	}
	s.conns.Go(func() { s.accept(listener) })
	defer func() {
		_ = listener.Close()
		s.drop(nil)
		s.conns.Wait()
	}()
	return s.guard(ctx, alarm)
}

// guard waits for the deadline and acts on it, again and again.
func (s *server) guard(ctx context.Context, alarm *alarm) error {
	a := newActor(s.dir, s.log, s.due)
	defer a.close()
	if _, err := look(s.known(), nil); err != nil { // a rehearsal: the code for it is then in memory
		return fmt.Errorf("read the mounts and processes of this machine: %w", err)
	}
	started := time.Now()
	pause := time.NewTimer(grace)
	defer pause.Stop()
	watch := firstWatch
	for set := boottime.Instant(0); ; {
		if d := s.deadline(); d != set { // one that has passed rings once
			if err := alarm.set(d); err != nil {
				return fmt.Errorf("set the timer to the deadline: %w", err)
			}
			set = d
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.changed:
		case <-alarm.rings:
		case <-pause.C:
		}
		running := time.Since(started)
		if running >= grace {
			s.goOn()
		}
		switch {
		case s.over(running >= idle):
			return nil
		case running < grace && !s.due():
			pause.Reset(grace)
		case !s.due():
			a.over()
			watch = firstWatch
			pause.Reset(idle)
		case a.round(s.known()):
			watch = firstWatch
			pause.Reset(busyPause)
		default:
			pause.Reset(watch)
			watch = min(2*watch, longestWatch)
		}
	}
}

// due says that the deadline has passed.
func (s *server) due() bool {
	d := s.deadline()
	return d != 0 && boottime.Now() >= d
}

// deadline is when to act; zero: never.
func (s *server) deadline() boottime.Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.told {
		return 0
	}
	return s.state.Times.Deadline
}

// known is what the fence guards.
func (s *server) known() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state // nobody changes what is in it
}

// goOn lets the fence act by what it knows from the one before it.
func (s *server) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = true
}

// over says that the fence has nothing to guard, and nobody who could tell it.
func (s *server) over(idle bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending || s.state.empty() && s.current == nil && idle
}

// accept serves one agent: the one that came last. Others before it are gone, or hang.
func (s *server) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		s.drop(conn)
		s.conns.Go(func() { s.serve(conn) })
	}
}

func (s *server) drop(next net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		_ = s.current.Close()
	}
	s.current = next
}

// serve answers the lines of an agent.
func (s *server) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		if s.current == conn {
			s.current = nil
		}
		s.mu.Unlock()
		s.wake()
	}()
	requests, answers := json.NewDecoder(conn), json.NewEncoder(conn)
	for {
		var q request
		if err := requests.Decode(&q); err != nil {
			return
		}
		a := s.answer(q)
		_ = conn.SetWriteDeadline(time.Now().Add(answerPatience))
		if err := answers.Encode(a); err != nil {
			return
		}
		s.wake()
	}
}

func (s *server) answer(q request) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := answer{Version: version}
	if q.Set != nil {
		s.state, s.told = *q.Set, true
		if err := saveState(s.dir, s.state); err != nil {
			s.log.Error("what is guarded could not be written down", "error", err)
			a.Error = err.Error()
		}
	}
	s.ending = q.Close && s.state.empty()
	a.State = s.state
	return a
}

func (s *server) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// kept is the state file: it counts for one start of the machine.
type kept struct {
	BootID string `json:"boot_id"`
	State  State  `json:"state"`
}

// saveState is not for the loss of power: nothing is mounted after it.
func saveState(dir string, s State) error {
	data, err := json.Marshal(kept{BootID: process.BootID(), State: s})
	if err != nil {
		return err
	}
	next := filepath.Join(dir, stateFile+".new")
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, stateFile))
}

func loadState(dir string) (State, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("read what the fence before guarded: %w", err)
	}
	var k kept
	if err := json.Unmarshal(data, &k); err != nil {
		return State{}, fmt.Errorf("read what the fence before guarded: %s: %w", filepath.Join(dir, stateFile), err)
	}
	if k.BootID != process.BootID() {
		return State{}, nil
	}
	return k.State, nil
}

// lockFolder keeps a second fence out.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the fence's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrRunning, dir)
		}
		return nil, fmt.Errorf("lock the fence's folder %s: %w", dir, err)
	}
	return f, nil
}

// listen opens the socket, for root alone: the folder is 0700, and so is it. Its folder is
// reached by a descriptor: the name of a socket may not be longer than 107 bytes (unix(7)).
func listen(dir string) (net.Listener, error) {
	path := filepath.Join(dir, socketFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	folder, short, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(short, socketFile)})
	if err != nil {
		return nil, fmt.Errorf("open the fence's socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // its name is another's by then
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// openFolder gives a short name of a folder, good until the file is closed.
func openFolder(dir string) (f *os.File, short string, err error) {
	if f, err = os.Open(dir); err != nil {
		return nil, "", err
	}
	return f, "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), nil
}
