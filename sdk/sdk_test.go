package sdk

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/pannier/pannier/sdk/internal/programtest"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunByHandExplainsItself(t *testing.T) {
	out, err := exec.Command(programtest.Build(t, "testdata/minimal")).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
	if want := "minimal 0.1.0 is a plugin for pannier (storage.v1)"; !strings.Contains(string(out), want) ||
		!strings.Contains(string(out), "plugin_dir") {
		t.Errorf("printed %q", out)
	}
}

// impl has the optional interfaces that its fields give it.
type impl struct {
	validate, configure, health func(ctx context.Context) error
}

func (i *impl) Validate(ctx context.Context, _ []byte) error  { return i.validate(ctx) }
func (i *impl) Configure(ctx context.Context, _ []byte) error { return i.configure(ctx) }
func (i *impl) Health(ctx context.Context) error              { return i.health(ctx) }

func TestConfiguration(t *testing.T) {
	fails := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	refusing := &impl{
		validate:  fails(errors.New(`key "x"`)),
		configure: fails(status.Error(codes.FailedPrecondition, "not now")),
	}
	willing := &impl{validate: fails(nil), configure: fails(nil)}
	for name, tc := range map[string]struct {
		impl                any
		config              string
		validate, configure codes.Code
	}{
		"no configuration, none wanted":  {struct{}{}, "", codes.OK, codes.OK},
		"an empty one, none wanted":      {struct{}{}, "{}", codes.OK, codes.OK},
		"a key, none wanted":             {struct{}{}, `{"key":1}`, codes.InvalidArgument, codes.InvalidArgument},
		"no object":                      {struct{}{}, `[]`, codes.InvalidArgument, codes.InvalidArgument},
		"a plugin that refuses":          {refusing, `{"x":1}`, codes.InvalidArgument, codes.FailedPrecondition},
		"a plugin that takes it":         {willing, `{"x":1}`, codes.OK, codes.OK},
		"a plugin that only configures":  {struct{ Configurer }{willing}, `{"x":1}`, codes.OK, codes.OK},
		"a plugin that does not compare": {struct{ Validator }{willing}, `{"x":1}`, codes.OK, codes.InvalidArgument},
	} {
		s := &service{info: Info{Name: "p"}, plugin: Plugin{Impl: tc.impl}}
		_, err := s.Validate(t.Context(), &pluginv1.ValidateRequest{Config: []byte(tc.config)})
		if status.Code(err) != tc.validate {
			t.Errorf("%s: validate: %v, want %v", name, err, tc.validate)
		}
		_, err = s.Configure(t.Context(), &pluginv1.ConfigureRequest{Config: []byte(tc.config)})
		if status.Code(err) != tc.configure {
			t.Errorf("%s: configure: %v, want %v", name, err, tc.configure)
		}
	}
}

func TestHealth(t *testing.T) {
	for name, tc := range map[string]struct {
		impl any
		want string
	}{
		"no opinion": {struct{}{}, ""},
		"well":       {&impl{health: func(context.Context) error { return nil }}, ""},
		"unwell":     {&impl{health: func(context.Context) error { return errors.New("no driver") }}, "no driver"},
		"panics":     {&impl{health: func(context.Context) error { panic("oh") }}, "the health check panicked: oh"},
	} {
		if got := (&healthCheck{impl: tc.impl}).run(t.Context()); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// attending is a host's side of Attend: when it got a report.
type attending struct {
	grpc.ServerStreamingServer[pluginv1.AttendResponse]
	ctx  context.Context
	sent []time.Time
}

func (a *attending) Context() context.Context { return a.ctx }

func (a *attending) Send(*pluginv1.AttendResponse) error {
	a.sent = append(a.sent, time.Now())
	return nil
}

// An unchanged health is sent at least every 30 s. A plugin without an opinion wakes up no more often than that needs.
func TestHealthIsRepeated(t *testing.T) {
	asked := 0
	for name, plugin := range map[string]Plugin{
		"no opinion": {Impl: struct{}{}},
		"well":       {Impl: &impl{health: func(context.Context) error { asked++; return nil }}},
		"its kind":   {Impl: struct{}{}, Health: func() error { asked++; return nil }},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			asked = 0
			host := &attending{ctx: ctx}
			began := time.Now()
			s := &service{plugin: plugin, life: newLifetime(hclog.NewNullLogger())}
			if err := s.Attend(&pluginv1.AttendRequest{}, host); err != nil {
				t.Fatal(err)
			}
			last := began
			for _, at := range append(host.sent, time.Now()) {
				if gap := at.Sub(last); gap > 30*time.Second {
					t.Errorf("%s: nothing was sent for %s", name, gap)
				}
				last = at
			}
			if most := int(time.Since(began)/healthRepeat) + 1; len(host.sent) > most {
				t.Errorf("%s: it was sent %d times, want at most %d", name, len(host.sent), most)
			}
			if least := int(time.Since(began) / healthInterval); name != "no opinion" && asked < least {
				t.Errorf("%s: it was asked %d times, want %d", name, asked, least)
			}
		})
	}
}

// A health check that hangs is reported, and is not called again before it returns.
func TestHealthThatHangs(t *testing.T) {
	asked := 0
	answer := make(chan error)
	c := &healthCheck{impl: &impl{health: func(context.Context) error { asked++; return <-answer }}}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if got := c.run(ctx); !strings.Contains(got, "did not answer") {
			t.Errorf("got %q", got)
		}
		cancel()
	}
	answer <- nil
	if got := c.run(t.Context()); got != "" || asked != 1 {
		t.Errorf("after its answer: %q, asked %d times", got, asked)
	}
}

func ended(l *lifetime, within time.Duration) bool {
	select {
	case <-l.stopping:
		return true
	case <-time.After(within):
		return false
	}
}

func TestOrphanEnds(t *testing.T) {
	l := newLifetime(hclog.NewNullLogger())
	first := l.attend(time.Millisecond)
	second := l.attend(time.Millisecond) // another host, before the first one left
	first()
	l.orphaned(0) // a timer that fired just before
	if ended(l, 20*time.Millisecond) {
		t.Fatal("ended while it was attended")
	}
	second()
	if !ended(l, time.Minute) {
		t.Fatal("did not end")
	}
}

func TestOrphanTimeoutZeroIsForever(t *testing.T) {
	l := newLifetime(hclog.NewNullLogger())
	l.attend(0)()
	if ended(l, 20*time.Millisecond) {
		t.Fatal("ended")
	}
	l.stop("the test is over")
	l.stop("twice")
	srv := grpc.NewServer()
	l.serving(srv) // stopped before it served: it must not serve
	if err := srv.Serve(bufconn.Listen(1)); !errors.Is(err, grpc.ErrServerStopped) {
		t.Errorf("serve: %v", err)
	}
}

func TestWithCode(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want codes.Code
	}{
		"none":          {nil, codes.OK},
		"a status":      {status.Error(codes.NotFound, "x"), codes.NotFound},
		"a wrapped one": {errors.Join(status.Error(codes.Aborted, "x")), codes.Aborted},
		"cancelled":     {context.Canceled, codes.Canceled},
		"too late":      {context.DeadlineExceeded, codes.DeadlineExceeded},
		"anything else": {errors.New("x"), codes.Internal},
	} {
		if got := status.Code(withCode(tc.err)); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
