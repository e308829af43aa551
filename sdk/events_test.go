package sdk

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/internal/programtest"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

func TestQueueKeepsWhatIsNotAcknowledged(t *testing.T) {
	q := newEventQueue()
	seqs := func(after uint64) (out []uint64) {
		events, _ := q.after(after)
		for _, e := range events {
			out = append(out, e.GetSeq())
		}
		return out
	}
	for range 5 {
		q.add(Event{Type: "tick"})
	}
	_, changed := q.after(5)
	q.ack(2)
	q.ack(1) // an older one changes nothing
	if got := seqs(0); !slices.Equal(got, []uint64{3, 4, 5}) {
		t.Errorf("after an acknowledgement: %d", got)
	}
	if got := seqs(4); !slices.Equal(got, []uint64{5}) {
		t.Errorf("after 4: %d", got)
	}
	select {
	case <-changed:
	default:
		t.Error("an acknowledgement did not notify the waiters")
	}
	q.ack(99)
	if got := seqs(0); len(got) != 0 {
		t.Errorf("everything is acknowledged: %d", got)
	}
	for range maxKept + 7 {
		q.add(Event{Type: "tick"})
	}
	if got := seqs(0); len(got) != maxKept || got[0] != 13 || got[maxKept-1] != 5+maxKept+7 {
		t.Errorf("%d events are kept, from %d", len(got), got[0])
	}
}

// Long or invalid texts cannot break the stream, and the author may change the details afterwards.
func TestEmitKeepsToTheBounds(t *testing.T) {
	q := newEventQueue()
	details := map[string]string{"k": "x" + strings.Repeat("ü", wire.MaxEventDetail)}
	q.add(Event{Type: strings.Repeat("t", 100), Subject: "a\xffb", Message: "ok", Details: details})
	details["k"] = "changed"
	events, _ := q.after(0)
	e := events[0]
	if len(e.GetType()) != wire.MaxEventType || e.GetSubject() != "a\uFFFDb" || e.GetMessage() != "ok" {
		t.Errorf("got %v", e)
	}
	if got := e.GetDetails()["k"]; got != "x"+strings.Repeat("ü", wire.MaxEventDetail/2-1) {
		t.Errorf("the detail has %d bytes", len(got))
	}
}

// startEmitter runs the emitter for a host that supports a next version of the wire, too.
func startEmitter(t *testing.T, cfg *goplugin.ClientConfig) (*goplugin.Client, *grpc.ClientConn, *exec.Cmd) {
	t.Helper()
	authority, err := wire.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := authority.Issue("emitter")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tls")
	if err := os.WriteFile(file, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(programtest.Build(t, "testdata/emitter"))
	cmd.Env = append(os.Environ(), wire.EnvTLSBundle+"="+file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cfg.HandshakeConfig, cfg.VersionedPlugins = wire.Handshake, wire.Plugins(nil)
	cfg.VersionedPlugins[wire.Version+1] = cfg.VersionedPlugins[wire.Version]
	cfg.AllowedProtocols = []goplugin.Protocol{goplugin.ProtocolGRPC}
	cfg.Cmd, cfg.TLSConfig, cfg.Logger = cmd, authority.ClientTLS("emitter"), hclog.NewNullLogger()
	client := goplugin.NewClient(cfg)
	t.Cleanup(client.Kill)
	protocol, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := protocol.Dispense(wire.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	return client, conn.(*grpc.ClientConn), cmd
}

// exits waits until the process has ended, in order.
func exits(t *testing.T, client *goplugin.Client, cmd *exec.Cmd) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !client.Exited(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the process goes on")
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
}

func emit(t *testing.T, conn *grpc.ClientConn, n int) {
	t.Helper()
	req := &storagev1.PublishRequest{TargetPath: strconv.Itoa(n)}
	if _, err := storagev1.NewStorageServiceClient(conn).Publish(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

// eventReader is a host's side of an event stream.
type eventReader struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[pluginv1.EventsRequest, pluginv1.EventsResponse]
}

func readEvents(t *testing.T, conn *grpc.ClientConn, ack uint64) *eventReader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := pluginv1.NewEventServiceClient(conn).Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := &eventReader{t, stream}
	r.ack(ack)
	return r
}

func (r *eventReader) ack(seq uint64) {
	r.t.Helper()
	if err := r.stream.Send(&pluginv1.EventsRequest{Ack: seq}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *eventReader) next(want uint64) *pluginv1.Event {
	r.t.Helper()
	res, err := r.stream.Recv()
	if err != nil || res.GetEvent().GetSeq() != want {
		r.t.Fatalf("got %v, %v, want event %d", res.GetEvent(), err, want)
	}
	return res.GetEvent()
}

func TestEventsOfAProcess(t *testing.T) {
	client, conn, cmd := startEmitter(t, &goplugin.ClientConfig{})
	if v := client.NegotiatedVersion(); v != wire.Version {
		t.Errorf("they agreed on version %d", v)
	}
	emit(t, conn, 3)
	first := readEvents(t, conn, 0)
	for n := range uint64(3) {
		if e := first.next(n + 1); e.GetType() != "tick" || e.GetDetails()["n"] != strconv.FormatUint(n+1, 10) ||
			time.Since(e.GetTime().AsTime()) > time.Minute {
			t.Errorf("got %v", e)
		}
	}
	// The next host continues after the last event that the previous host had.
	second := readEvents(t, conn, 2)
	second.next(3)
	if _, err := first.stream.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the older stream ended with %v", err)
	}
	// A host that names no event gets those that were not acknowledged, on an earlier stream either.
	second.ack(3)
	emit(t, conn, 1)
	second.next(4)
	third := readEvents(t, conn, 0)
	third.next(4)

	// Events that are emitted while the process ends are delivered before it ends.
	if _, err := pluginv1.NewPluginServiceClient(conn).Stop(t.Context(), &pluginv1.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	if last := third.next(5); last.GetType() != "last" || last.GetDetails()["n"] != "4" {
		t.Errorf("the last event is %v", last)
	}
	third.ack(5)
	if _, err := third.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	exits(t, client, cmd)
}

// ends reports whether a connection is broken, or breaks within a moment.
func ends(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return conn.GetState() != connectivity.Ready || conn.WaitForStateChange(ctx, connectivity.Ready)
}

// A call that reaches an ending process is answered, or its connection ends: only the latter makes the host repeat
// the call.
func TestStopRefusesNoCall(t *testing.T) {
	client, conn, cmd := startEmitter(t, &goplugin.ClientConfig{})
	rpc := storagev1.NewStorageServiceClient(conn)
	answered := 0
	for n := 0; ; n++ {
		_, err := rpc.Publish(t.Context(), &storagev1.PublishRequest{TargetPath: "1"})
		if err == nil {
			answered++
		} else if status.Code(err) != codes.Unavailable || !ends(t.Context(), conn) {
			t.Errorf("call %d: %v, and the connection is %v", n, err, conn.GetState())
		}
		if err != nil {
			break
		}
		if n == 100 {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	exits(t, client, cmd)
	if answered < 100 {
		t.Errorf("it ended after %d answers", answered)
	}
}
