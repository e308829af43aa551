package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// PluginEvent is an event that a plugin has emitted. Its texts are cut to what an event may hold (wire.CutEvent).
type PluginEvent struct {
	Plugin     string // the plugin's name
	Kind       string // such as "storage.v1"
	Generation uint64 // the process that emitted it
	Seq        uint64 // orders the events of one process
	// Lost is how many events the process dropped just before this one because nobody read them.
	Lost    uint64
	Time    time.Time
	Type    string // what happened, such as "driver-lost"
	Subject string // what it happened to; may be empty
	Message string // for people, one line
	Details map[string]string
}

// ID identifies an event forever. If a host is killed while it delivers an event, the next host delivers the event
// again, with the same ID.
func (e PluginEvent) ID() string { return fmt.Sprintf("%s/%d/%d", e.Plugin, e.Generation, e.Seq) }

const (
	// eventRate is how many events a second are read from one process. If the process emits more, it keeps the
	// newest.
	eventRate = 2000
	// lastEvents bounds how long the events of a process that has ended are read.
	lastEvents = time.Second
	// eventsPause and eventsPauseMax bound the pause before an event stream that broke is opened again.
	eventsPause    = 50 * time.Millisecond
	eventsPauseMax = 10 * time.Second
)

// follower delivers the events of one process in order.
type follower struct {
	i      *instance
	api    pluginv1.EventServiceClient
	run    *managed.Run
	gone   <-chan struct{} // closed when the process has ended
	have   *cursor
	rate   *rate.Limiter
	open   chan struct{} // closed when the plugin knows that the host reads its events
	once   sync.Once
	cancel context.CancelFunc
	done   chan struct{}
}

// follow begins to read the events of a process, if the process has any and OnPluginEvent is set. Events that were
// delivered before, possibly by an earlier host, are not delivered again. It ends with the process, or with close.
func (i *instance) follow(ctx context.Context, conn grpc.ClientConnInterface, run *managed.Run,
	gone <-chan struct{},
) *follower {
	if i.sup.cfg.OnPluginEvent == nil || run.Process == nil {
		return nil
	}
	have, err := openCursor(i.sup.dir, run.Process.Token)
	if err != nil {
		i.log.Error("the next host may deliver events of the plugin twice", "error", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &follower{
		i: i, api: pluginv1.NewEventServiceClient(conn), run: run, gone: gone, have: have,
		rate: rate.NewLimiter(eventRate, eventRate), open: make(chan struct{}), cancel: cancel, done: make(chan struct{}),
	}
	go f.loop(ctx)
	return f
}

func (f *follower) loop(ctx context.Context) {
	defer close(f.done)
	defer f.have.close()
	for pause := eventsPause; ; pause = min(2*pause, eventsPauseMax) {
		before := f.have.seq
		err := f.read(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case status.Code(err) == codes.Unimplemented:
			return // it has no events
		case f.have.seq != before:
			pause = eventsPause
		}
		select {
		case <-f.gone:
			return
		case <-ctx.Done():
			return
		case <-time.After(pause):
			f.i.log.Debug("the plugin's event stream broke and is opened again", "generation", f.run.Number, "reason",
				status.Convert(err).Message())
		}
	}
}

// read opens the stream and delivers what it receives. It returns nil when the plugin has said that there is
// nothing more.
func (f *follower) read(ctx context.Context) error {
	stream, err := f.api.Events(ctx)
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		_ = stream.Send(&pluginv1.EventsRequest{Ack: f.have.seq}) // Recv reports why it failed
		if first {
			if _, err := stream.Header(); err == nil {
				f.once.Do(func() { close(f.open) })
			}
		}
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		e := res.GetEvent()
		if e.GetSeq() <= f.have.seq {
			continue // delivered before
		}
		if err := f.rate.Wait(ctx); err != nil {
			return err
		}
		failpoint.Here("event", "received")
		f.i.sup.cfg.OnPluginEvent(f.event(e))
		failpoint.Here("event", "handled")
		if err := f.have.note(e.GetSeq()); err != nil {
			f.i.log.Error("the next host may deliver events of the plugin twice", "error", err)
		}
		failpoint.Here("event", "noted")
	}
}

func (f *follower) event(e *pluginv1.Event) PluginEvent {
	wire.CutEvent(e)
	at := time.Now()
	if e.GetTime().IsValid() {
		at = e.GetTime().AsTime()
	}
	lost := e.GetSeq() - f.have.seq - 1
	if lost > 0 {
		f.i.log.Warn("the plugin has dropped events, because there were more than it keeps", "generation", f.run.Number,
			"dropped", lost)
	}
	return PluginEvent{
		Plugin: f.i.name, Kind: f.run.Kind, Generation: f.run.Number, Seq: e.GetSeq(), Lost: lost,
		Time: at, Type: e.GetType(), Subject: e.GetSubject(), Message: e.GetMessage(), Details: e.GetDetails(),
	}
}

// opened waits briefly until the plugin knows that its events are read: a plugin that ends waits only for hosts
// that it knows.
func (f *follower) opened(ctx context.Context) {
	if f == nil {
		return
	}
	timer := time.NewTimer(lastEvents)
	defer timer.Stop()
	select {
	case <-f.open:
	case <-f.done:
	case <-f.gone:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// finish waits up to timeout until the plugin has sent all its events.
func (f *follower) finish(timeout time.Duration) {
	if f == nil {
		return
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-f.done:
	case <-timer.C:
	}
	f.close()
}

// close stops reading. The plugin keeps the events that were not delivered.
func (f *follower) close() {
	if f == nil {
		return
	}
	f.cancel()
	<-f.done
}

// endWithEvents asks a process that an earlier host left beside the serving one to end, and reads its remaining
// events. Failure does not matter: the caller ends what is left of the process.
func (i *instance) endWithEvents(ctx context.Context, run *managed.Run) {
	if run.Process == nil || run.Address == "" {
		return
	}
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(credentials.NewTLS(i.sup.authority.ClientTLS(serverName(run.Process.Token)))),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", run.Address)
		}))
	if err != nil {
		return
	}
	defer conn.Close()
	gone := make(chan struct{})
	f := i.follow(ctx, conn, run, gone)
	if f == nil {
		return
	}
	defer f.close()
	ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StopTimeout)
	defer cancel()
	f.opened(ctx)
	if _, err := pluginv1.NewPluginServiceClient(conn).Stop(ctx, &pluginv1.StopRequest{}); err != nil {
		return // it is gone, or does not answer
	}
	close(gone) // when the stream breaks, there is nothing to reconnect to
	select {
	case <-f.done:
	case <-ctx.Done():
	}
}

// cursor is the number of the last event of one process that was delivered. It is kept in a file for the next
// host. The file is not synced, because the process does not survive a crash of the machine either.
type cursor struct {
	seq  uint64
	file *os.File // nil if it could not be opened
}

// cursorPath returns the path of a process's cursor, named by the process's unique token.
func cursorPath(dir, token string) string { return filepath.Join(dir, "events", token) }

// openCursor opens a cursor. If that fails, the cursor returned with the error works without a file.
func openCursor(dir, token string) (*cursor, error) {
	path := cursorPath(dir, token)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return &cursor{}, fmt.Errorf("open the cursor of a plugin's events: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return &cursor{}, fmt.Errorf("open the cursor of a plugin's events: %w", err)
	}
	c := &cursor{file: f}
	text, err := io.ReadAll(io.LimitReader(f, cursorLength))
	if err == nil && len(text) > 0 {
		c.seq, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	}
	if err != nil {
		return c, fmt.Errorf("read the cursor of a plugin's events, %s: %w", path, err)
	}
	return c, nil
}

// cursorLength is the length of a cursor's file in bytes. It is constant, so that one write replaces the content.
const cursorLength = 21

func (c *cursor) note(seq uint64) error {
	c.seq = seq
	if c.file == nil {
		return nil
	}
	if _, err := c.file.WriteAt(fmt.Appendf(nil, "%020d\n", seq), 0); err != nil {
		return fmt.Errorf("write the cursor of a plugin's events: %w", err)
	}
	return nil
}

func (c *cursor) close() {
	if c.file != nil {
		_ = c.file.Close()
	}
}

// removeCursor removes the cursor of a process that is gone.
func removeCursor(dir, token string) error {
	err := os.Remove(cursorPath(dir, token))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// sweepCursors removes the cursors of processes that no record names.
func sweepCursors(dir string, keep map[string]bool) error {
	files, err := filepath.Glob(cursorPath(dir, "*"))
	for _, f := range files {
		if !keep[filepath.Base(f)] {
			err = errors.Join(err, os.Remove(f))
		}
	}
	return err
}
