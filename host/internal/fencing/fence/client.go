package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/notify"
)

var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the fence's client is closed")
	// ErrNotKept means that the fence guards what it was told to, but could not save it: if the fence were restarted, the
	// new one would not know.
	ErrNotKept = errors.New("the fence could not save what it guards")
)

const (
	// answerTimeout is how long a fence may take to answer before it is killed and restarted.
	answerTimeout = 5 * time.Second
	// startTimeout is how long a fence may take to start.
	startTimeout = 30 * time.Second
)

// Config is what a Client needs.
type Config struct {
	// Dir is the fence's folder in the data directory. It is created with mode 0700.
	Dir string
	// Command is the program and its arguments that call Run for Dir. Default: this program with "fence -dir DIR".
	Command []string
	// Env is the fence's environment; nothing is inherited.
	Env []string
	Log hclog.Logger
}

// Client is the agent's side of the fence. It keeps one running and tells it what to guard.
type Client struct {
	cfg Config

	mu       sync.Mutex
	want     *book
	version  uint64           // counts the changes of want
	told     uint64           // the version that the fence has confirmed
	err      error            // why the last attempt failed
	progress notify.Broadcast // of told and err

	kick chan struct{} // receives a value after a change
	conn *connection   // used by keep only, as is proc
	proc *process.Process

	stop   context.CancelFunc
	keeper sync.WaitGroup
	close  sync.Once
}

// Open connects to the fence of a folder, or starts one, and reads what it guards. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the fence: %w", err)
	}
	if len(cfg.Command) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("open the fence: find this program: %w", err)
		}
		cfg.Command = []string{exe, "fence", "-dir", cfg.Dir}
	}
	c := &Client{cfg: cfg, kick: make(chan struct{}, 1)}
	a, err := c.reach(ctx, request{})
	if err != nil {
		c.hangUp()
		c.releaseProcess()
		return nil, fmt.Errorf("open the fence: %w", err)
	}
	c.want = newBook(a.State)
	c.version = 1 // send its state back once: from then on the fence acts on it
	c.kick <- struct{}{}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	c.keeper.Go(func() { c.keep(running) })
	return c, nil
}

// Close ends a fence that has nothing to guard. Any other runs on, and acts at its deadline unless a later agent
// process renews the lease.
func (c *Client) Close() error {
	c.close.Do(func() {
		c.stop()
		c.keeper.Wait()
		defer c.releaseProcess()
		defer c.hangUp()
		if state := c.State(); !state.empty() || c.conn == nil {
			return
		}
		if _, err := c.conn.ask(request{Close: true}); err != nil || c.proc == nil {
			return
		}
		select {
		case <-c.proc.Done():
		case <-time.After(answerTimeout):
		}
	})
	return nil
}

// State returns what the fence is to guard, including changes that it has not confirmed yet.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.want.state()
}

// Update changes what the fence guards, and waits until the fence has confirmed it. If that fails the change is kept
// nevertheless, and sent to the fence as soon as possible. Errors: why the fence did not confirm in time; ErrNotKept.
func (c *Client) Update(ctx context.Context, change func(Change)) error {
	c.mu.Lock()
	change(Change{c.want})
	c.version++
	mine := c.version
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
	for {
		progress := c.progress.Wait()
		c.mu.Lock()
		told, err := c.told, c.err
		c.mu.Unlock()
		if told >= mine {
			return err
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Reports lists what the fence did lately.
func (c *Client) Reports() ([]Report, error) { return Reports(c.cfg.Dir) }

// keep sends each change to the fence, and starts a new one when it ends.
func (c *Client) keep(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 20*time.Millisecond, 5*time.Second
	for {
		var again <-chan time.Time
		if err := c.tell(ctx); err != nil && ctx.Err() == nil {
			c.cfg.Log.Error("the fence cannot be told what to guard, and no volume is published until it can: retrying", "error",
				err)
			again = time.After(pause.NextBackOff())
		} else {
			pause.Reset()
		}
		var gone <-chan struct{}
		if c.conn != nil {
			gone = c.conn.gone
		}
		select {
		case <-ctx.Done():
			c.note(c.told, ErrClosed)
			return
		case <-c.kick:
		case <-again:
		case <-gone:
			c.hangUp()
			c.cfg.Log.Warn("the fence has ended: starting another one")
		}
	}
}

// tell sends the fence what it is to guard.
func (c *Client) tell(ctx context.Context) error {
	c.mu.Lock()
	state, now := c.want.state(), c.version
	c.mu.Unlock()
	a, err := c.reach(ctx, request{Set: &state})
	if err != nil {
		c.note(c.told, err)
		return err
	}
	if a.Error != "" {
		err = fmt.Errorf("%w: %s", ErrNotKept, a.Error)
	}
	c.note(now, err)
	return nil
}

func (c *Client) note(told uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told, c.err = told, err
	c.progress.Notify()
}

// reach sends the fence a request, after starting one if there is none. A fence that does not answer, or speaks
// another version of the protocol, is replaced.
func (c *Client) reach(ctx context.Context, q request) (answer, error) {
	for try := 0; ; try++ {
		a, err := c.askOnce(ctx, q)
		if err == nil || try > 0 || ctx.Err() != nil {
			return a, err
		}
		c.cfg.Log.Warn("the fence does not answer: starting another one", "error", err)
	}
}

func (c *Client) askOnce(ctx context.Context, q request) (answer, error) {
	if c.conn == nil {
		conn, err := c.connect(ctx)
		if err != nil {
			return answer{}, err
		}
		c.conn = conn
	}
	a, err := c.conn.ask(q)
	if err == nil && a.Version != version {
		err = fmt.Errorf("it speaks version %d of the protocol, this program version %d", a.Version, version)
	}
	if err == nil {
		return a, nil
	}
	err = errors.Join(err, c.conn.kill()) //nolint:contextcheck // observing a process waits for nothing
	c.hangUp()
	return answer{}, err
}

// connect dials the running fence, or starts one.
func (c *Client) connect(ctx context.Context) (*connection, error) {
	conn, err := dial(c.cfg.Dir)
	if err == nil {
		return conn, nil
	}
	if err := c.start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ended, ending := c.proc.Done(), (<-chan time.Time)(nil)
	for {
		if conn, err = dial(c.cfg.Dir); err == nil {
			return conn, nil
		}
		select {
		case <-ended:
			// A fence that an earlier agent process started may have been faster: it holds the lock, and listens soon.
			ended, ending = nil, time.After(startTimeout/10)
		case <-ending:
			cancel()
		case <-ctx.Done():
			return nil, fmt.Errorf("reach the fence that was started (it is %s, see %s): %w", c.proc.Exit(),
				filepath.Join(c.cfg.Dir, logFile), err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (c *Client) start() error {
	c.releaseProcess()
	p, err := process.Start(process.Spec{
		Token: process.NewToken(), Path: c.cfg.Command[0], Args: c.cfg.Command[1:], Env: c.cfg.Env,
		LogPath: filepath.Join(c.cfg.Dir, logFile),
	})
	if err != nil {
		return err
	}
	c.proc = p
	return nil
}

func (c *Client) releaseProcess() {
	if c.proc != nil {
		c.proc.Release()
		c.proc = nil
	}
}

func (c *Client) hangUp() {
	if c.conn != nil {
		c.conn.close()
		c.conn = nil
	}
}

// connection is a connection to a fence.
type connection struct {
	conn    *net.UnixConn
	answers chan answer
	gone    chan struct{} // closed when the fence has closed the connection
	reading sync.WaitGroup
}

func dial(dir string) (*connection, error) {
	folder, short, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: filepath.Join(short, socketFile)})
	if err != nil {
		return nil, err
	}
	c := &connection{conn: conn, answers: make(chan answer), gone: make(chan struct{})}
	c.reading.Go(c.read)
	return c, nil
}

// read reads all answers. It also notices when the fence ends between requests.
func (c *connection) read() {
	defer close(c.gone)
	for answers := json.NewDecoder(c.conn); ; {
		var a answer
		if err := answers.Decode(&a); err != nil {
			return
		}
		c.answers <- a
	}
}

func (c *connection) ask(q request) (answer, error) {
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return answer{}, err
	}
	if err := json.NewEncoder(c.conn).Encode(q); err != nil {
		return answer{}, fmt.Errorf("ask the fence: %w", err)
	}
	select {
	case a := <-c.answers:
		return a, c.conn.SetDeadline(time.Time{})
	case <-c.gone:
		return answer{}, errors.New("the fence ended, or did not answer in time")
	}
}

// kill kills a fence that does not answer, because it holds the folder's lock.
func (c *connection) kill() error {
	peer, err := process.AtSocket(c.conn)
	if err != nil {
		return fmt.Errorf("find the fence's process: %w", err)
	}
	if peer.Process.PID == 0 {
		return nil // it has ended
	}
	p, err := process.Find(context.Background(), peer.Process)
	if errors.Is(err, process.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Release()
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.Done():
		return nil
	case <-time.After(answerTimeout):
		return fmt.Errorf("the fence (process %d) was killed but does not end", p.PID())
	}
}

func (c *connection) close() {
	_ = c.conn.Close()
	// Receive an answer that no caller waits for any more.
	select {
	case <-c.answers:
	case <-c.gone:
	}
	c.reading.Wait()
}
