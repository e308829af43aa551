package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/internal/trusted"
)

// The files of a fence's folder.
const (
	socketFile = "fence.sock"
	lockFile   = "fence.lock"
	logFile    = "fence.log"
	reportFile = "fenced.json"
)

// ErrRunning is returned by Run if the folder already has a fence.
var ErrRunning = errors.New("another fence runs for this folder")

const (
	// grace is how long a new fence waits for its agent before it acts on the state of the previous one: the agent may
	// have a longer lease.
	grace = 2 * time.Second
	// idle is how long a fence with nothing to guard waits for its agent before it ends.
	idle = time.Minute
	// After its deadline the fence keeps checking whether something came back, such as a mount that a driver was just
	// making: often at first, then less and less.
	firstWatch, longestWatch = 250 * time.Millisecond, time.Second
	// busyPause is the pause between two rounds that have something to do.
	busyPause = 5 * time.Millisecond
)

// server is one fence.
type server struct {
	dir string
	log hclog.Logger

	mu      sync.Mutex
	state   State
	told    bool // the agent has sent its state, or grace is over
	current net.Conn
	ending  bool

	changed chan struct{} // receives a value after a change
	conns   sync.WaitGroup
	saver   *saver
}

// Run runs a fence until its agent closes it or ctx ends. dir is its folder, made by the agent (0700); out receives its
// log, and may hang. Errors: ErrRunning.
func Run(ctx context.Context, dir string, out io.Writer) (err error) {
	lock, err := lockFolder(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	lines := newLogWriter(out)
	defer lines.close()
	log := hclog.New(&hclog.LoggerOptions{Name: "fence", Output: printable.Writer(lines)})
	if err := harden(); err != nil {
		log.Warn("the fence may be late if the machine is very busy: it lacks permissions", "error", err)
	}
	s := &server{dir: dir, log: log, changed: make(chan struct{}, 1)}
	if s.state, err = loadState(dir); err != nil {
		return err
	}
	s.saver = newSaver(dir)
	defer s.saver.close()
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

// guard waits for the deadline and acts on it, as long as the fence runs.
func (s *server) guard(ctx context.Context, alarm *alarm) error {
	a := newActor(s.dir, s.log, s.due)
	defer a.close()
	sc, err := look(s.known(), nil) // a trial run, which also loads the code into memory
	if err != nil {
		return fmt.Errorf("read the mounts and processes of this machine: %w", err)
	}
	sc.Close()
	started := time.Now()
	pause := time.NewTimer(grace)
	defer pause.Stop()
	watch := firstWatch
	for set := boottime.Instant(0); ; {
		if d := s.deadline(); d != set { // a deadline that has passed sets off the alarm once
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
			s.useInherited()
		}
		switch {
		case s.over(running >= idle):
			return nil
		case running < grace && !s.due():
			pause.Reset(grace)
		case !s.due():
			a.reset()
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

// due reports whether the deadline has passed.
func (s *server) due() bool {
	d := s.deadline()
	return d != 0 && boottime.Now() >= d
}

// deadline returns when to act; zero: never.
func (s *server) deadline() boottime.Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.told {
		return 0
	}
	return s.state.Times.Deadline
}

// known returns what the fence guards.
func (s *server) known() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state // its contents are never changed
}

// useInherited lets the fence act on the state of the previous one.
func (s *server) useInherited() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = true
}

// over reports that the fence has nothing to guard and no agent that could give it something.
func (s *server) over(idle bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending || s.state.empty() && s.current == nil && idle
}

// accept serves the agent that connected last. Earlier ones are gone, or hang.
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

// serve answers an agent's requests.
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
		_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
		if err := answers.Encode(a); err != nil {
			return
		}
		s.wake()
	}
}

func (s *server) answer(q request) answer {
	a, saved := s.take(q)
	if saved == nil {
		return a
	}
	s.wake() // a state is in effect before it is saved
	if err := waitSaved(saved); err != nil {
		s.log.Error("the fence's state could not be saved", "error", err)
		a.Error = err.Error()
	}
	return a
}

// take puts a request into effect. saved is nil if there is nothing to save.
func (s *server) take(q request) (a answer, saved <-chan error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.Set != nil {
		s.state, s.told = *q.Set, true
		saved = s.saver.save(s.state)
	}
	s.ending = q.Close && s.state.empty()
	return answer{Version: version, State: s.state}, saved
}

func (s *server) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// lockFolder prevents a second fence for the folder.
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

// listen opens the socket, for root only: both the folder and the socket are private. The folder is addressed through
// a descriptor, because the name of a socket must not exceed 107 bytes (unix(7)).
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
	l.SetUnlinkOnClose(false) // the next fence has that name by then
	if err := trusted.Permit(path, fs.ModeSocket, 0o600, -1, -1); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// openFolder opens a folder and returns a short path to it, valid until f is closed.
func openFolder(dir string) (f *os.File, short string, err error) {
	if f, err = os.Open(dir); err != nil {
		return nil, "", err
	}
	return f, "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), nil
}
