package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plugins is a fake supervisor: all plugins that it lists are up, on one connection.
type plugins struct {
	list    []supervisor.Status
	conn    grpc.ClientConnInterface
	users   int
	kind    string
	retired chan struct{}
	ended   chan struct{}
	stop    func()                   // ends the process
	canary  grpc.ClientConnInterface // gets the calls that it may get; nil: there is none
}

func (p *plugins) Acquire(context.Context, string) (supervisor.Handle, error) {
	p.users++
	return supervisor.Handle{
		Conn: p.conn, Kind: p.kind, Retired: p.retired, Ended: p.ended,
		Release: func() { p.users-- },
	}, nil
}

func (p *plugins) AcquireCall(ctx context.Context, name string) (supervisor.Handle, error) {
	handle, err := p.Acquire(ctx, name)
	if p.canary != nil {
		handle.Conn = p.canary
	}
	return handle, err
}

func (p *plugins) Await(ctx context.Context, done func([]supervisor.Status) bool) error {
	if done(p.list) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// impl answers ValidateVolume with err, or with whether the call has a deadline.
type impl struct {
	storage.Storage
	err   error
	then  func() // is called as it returns; nil: nothing is
	waits bool   // a stream goes on until its caller ends it
}

func (i *impl) ValidateVolume(ctx context.Context, _ storage.Driver, _ storage.ValidateRequest) (has []string,
	err error,
) {
	if _, ok := ctx.Deadline(); ok {
		has = []string{"a deadline"}
	}
	if i.then != nil {
		go i.then()
	}
	return has, i.err
}

func call(ctx context.Context, client storage.Client) (has []string, err error) {
	return client.ValidateVolume(ctx, storage.Driver{}, storage.ValidateRequest{})
}

func (i *impl) Fingerprint(ctx context.Context, _ storage.Driver, _ storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	if i.waits {
		if err := report(storage.Fingerprint{Healthy: true}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return i.err
}

func serve(t *testing.T, i *impl) *plugins {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	srv := grpc.NewServer()
	storage.Plugin(i).Register(srv)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(listener)
	}()
	conn, err := grpc.NewClient("passthrough:plugin",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		<-served
	})
	return &plugins{
		conn: conn, kind: storage.Kind, stop: srv.Stop,
		list: []supervisor.Status{{Name: "csi-bridge", Kind: storage.Kind}},
	}
}

func TestErrorsSayWhoseTheyAreAndKeepTheirCode(t *testing.T) {
	i := &impl{err: status.Error(codes.NotFound, "no volume v")}
	p := serve(t, i)
	client, release, err := New(p).Storage(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	_, unary := call(t.Context(), client)
	stream := client.Fingerprint(t.Context(), storage.Driver{}, storage.FingerprintOptions{}, nil)
	for name, err := range map[string]error{"unary": unary, "stream": stream} {
		s, ok := status.FromError(err)
		if !ok || s.Code() != codes.NotFound || s.Message() != "storage(csi-bridge): no volume v" {
			t.Errorf("%s: %v, %v", name, s, ok)
		}
		if err.Error() != "storage(csi-bridge): no volume v" {
			t.Errorf("%s: %q", name, err)
		}
		var own *callError
		if !errors.As(err, &own) || status.Code(own.Unwrap()) != codes.NotFound {
			t.Errorf("%s: a %T", name, err)
		}
	}
	release()
	if p.users != 0 {
		t.Errorf("%d users are left", p.users)
	}
}

func TestEndOfTheCallersContextIsKnownByItsName(t *testing.T) {
	client, release, err := New(serve(t, &impl{})).Storage(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := call(ctx, client); !errors.Is(err, context.Canceled) ||
		status.Code(err) != codes.Canceled {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := call(ctx, client); !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled) {
		t.Errorf("too late: %v", err)
	}
}

// A plugin that is stopping may refuse a call a moment before its connection ends; the call is then repeated. A
// driver's own Unavailable does not mean that the plugin has ended.
func TestWhoIsUnavailable(t *testing.T) {
	for _, stops := range []bool{true, false} {
		i := &impl{err: status.Error(codes.Unavailable, "not now")}
		p := serve(t, i)
		p.ended = make(chan struct{})
		if stops {
			i.then = func() {
				p.stop()
				close(p.ended)
			}
		}
		client, release, err := New(p).Storage(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = call(t.Context(), client)
		release()
		if status.Code(err) != codes.Unavailable || errors.Is(err, errEnded) != stops {
			t.Errorf("the plugin stops: %t; the call ended with it: %t (%v)", stops, errors.Is(err, errEnded), err)
		}
	}
}

// failing is a canary that fails its calls.
type failing struct {
	grpc.ClientConnInterface
	calls int
}

func (f *failing) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	f.calls++
	return fmt.Errorf("it is broken: %w", supervisor.ErrReplaced)
}

// A call that a canary fails is repeated on the process that serves; what may be a stream is never on a canary.
func TestACallIsRepeatedWithoutTheCanary(t *testing.T) {
	canary := &failing{}
	p := serve(t, &impl{})
	p.canary = canary
	c := New(p)
	tries := 0
	err := c.DoStorage(t.Context(), "", func(ctx context.Context, client storage.Client) error {
		tries++
		_, err := call(ctx, client)
		return err
	})
	if err != nil || tries != 2 || canary.calls != 1 || p.users != 0 {
		t.Errorf("%v after %d tries, %d of them on the canary", err, tries, canary.calls)
	}
	client, release, err := c.Storage(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := call(t.Context(), client); err != nil {
		t.Error(err)
	}
}

// Without this, a stream would stay on a process that has been replaced.
func TestAStreamEndsWhenAnotherProcessTakesOver(t *testing.T) {
	p := serve(t, &impl{waits: true})
	p.retired = make(chan struct{})
	client, release, err := New(p).Storage(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	reports := 0
	err = client.Fingerprint(t.Context(), storage.Driver{}, storage.FingerprintOptions{}, func(storage.Fingerprint) error {
		reports++
		close(p.retired)
		return nil
	})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "has taken over") || reports != 1 {
		t.Errorf("%v after %d reports", err, reports)
	}
	if _, err := call(t.Context(), client); err != nil {
		t.Errorf("a call on a generation that is still acquired: %v", err)
	}
}

func TestEveryCallHasADeadline(t *testing.T) {
	client, release, err := New(serve(t, &impl{})).Storage(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if has, err := call(context.Background(), client); err != nil || len(has) == 0 {
		t.Errorf("the call has a deadline: %v, %v", has, err)
	}
}

func TestWhichPlugin(t *testing.T) {
	other := supervisor.Status{Name: "other", Kind: "identity.v1"}
	a, b := supervisor.Status{Name: "a", Kind: storage.Kind}, supervisor.Status{Name: "b", Kind: storage.Kind}
	twin := supervisor.Status{Name: "twin", Kind: storage.Kind, DuplicateOf: "a"}
	bridge, starting := supervisor.Status{Name: "csi-bridge"}, supervisor.Status{Name: "x"}
	for name, tc := range map[string]struct {
		list []supervisor.Status
		want string
		err  error
	}{
		"the only one":                  {[]supervisor.Status{other, a}, "a", nil},
		"the default":                   {[]supervisor.Status{a, b, bridge}, "csi-bridge", nil},
		"two":                           {[]supervisor.Status{a, b}, "", ErrAmbiguous},
		"none":                          {[]supervisor.Status{other}, "", supervisor.ErrUnknown},
		"one of two files":              {[]supervisor.Status{a, twin}, "a", nil},
		"no plugins at all":             {nil, "", supervisor.ErrUnknown},
		"one that has yet to come up":   {[]supervisor.Status{other, starting}, "", supervisor.ErrUnavailable},
		"the only one, while one waits": {[]supervisor.Status{a, starting}, "a", nil},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		got, err := New(&plugins{list: tc.list}).pick(ctx, storage.Kind, "csi-bridge")
		cancel()
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, tc.want, tc.err)
		}
	}
}

func TestPluginOfAnotherKindIsGivenBack(t *testing.T) {
	p := serve(t, &impl{})
	p.kind = "storage.v2"
	if _, _, err := New(p).Storage(t.Context(), ""); !errors.Is(err, ErrWrongKind) || p.users != 0 {
		t.Errorf("%v, %d users", err, p.users)
	}
}

func TestWhichDevicePlugins(t *testing.T) {
	list := []supervisor.Status{
		{Name: "z", Kind: device.Kind}, {Name: "a", Kind: device.Kind}, {
			Name: "s",
			Kind: storage.Kind,
		}, {Name: "new"}, {Name: "later"}, {Name: "twin", DuplicateOf: "a"},
	}
	c := New(&plugins{list: list})
	names, pending := []string{"a", "z"}, []string{"later", "new"}
	got, unknown, err := c.AwaitDevicePlugins(t.Context(), nil, nil)
	if err != nil || !slices.Equal(got, names) || !slices.Equal(unknown, pending) {
		t.Errorf("got %q and %q, %v; want %q and %q", got, unknown, err, names, pending)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := c.AwaitDevicePlugins(ctx, names, pending); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing has changed, and it does not wait: %v", err)
	}
	if _, _, err := c.AwaitDevicePlugins(ctx, names, nil); err != nil {
		t.Errorf("one has come up: %v", err)
	}
}

func TestWhichStoragePluginsServe(t *testing.T) {
	p := &plugins{list: []supervisor.Status{
		{Name: "a", Kind: storage.Kind, State: supervisor.Running, Generation: 3},
		{Name: "new", Kind: storage.Kind, State: supervisor.BackingOff, Generation: 1},
		{Name: "down", Kind: storage.Kind, State: supervisor.BackingOff, Generation: 8},
		{Name: "awaited", State: supervisor.BackingOff},
		{Name: "d", Kind: device.Kind, State: supervisor.Running, Generation: 1},
	}}
	want := map[string]uint64{"a": 3, "down": 7}
	got, err := New(p).AwaitStorage(t.Context(), map[string]uint64{"a": 2, "down": 7, "removed": 1, "awaited": 1})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got, err := New(p).AwaitStorage(ctx, want); !errors.Is(err, context.DeadlineExceeded) || !maps.Equal(got, want) {
		t.Errorf("nothing has changed, and it does not wait: %v, %v", got, err)
	}
}

func TestADevicePluginIsTakenByItsName(t *testing.T) {
	p := serve(t, &impl{})
	p.kind = device.Kind
	c := New(p)
	if err := c.DoDevice(t.Context(), "gpus", func(context.Context, device.Client) error { return nil }); err != nil ||
		p.users != 0 {
		t.Errorf("%v, %d users", err, p.users)
	}
	p.kind = storage.Kind
	if _, _, err := c.Device(t.Context(), "gpus"); !errors.Is(err, ErrWrongKind) || p.users != 0 {
		t.Errorf("a plugin of another kind: %v, %d users", err, p.users)
	}
}
