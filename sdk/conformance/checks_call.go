package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

var callChecks = []*Check{
	{
		ID:    "call.together",
		Says:  "Concurrent calls get the same answer as a single call.",
		Fix:   "Guard the state that calls share. A call that changes nothing should not wait for others.",
		after: configured,
		run:   up(checkTogether),
	},
	{
		ID:    "call.away",
		Says:  "If its backend is unreachable, every call fails with a code that says so, and not with Internal, Unknown or, unless the method is of an optional interface, Unimplemented.",
		Fix:   "Return gRPC status errors: Unavailable for an unreachable backend, which a host retries. The kind's package documents the codes.",
		after: configured,
		run: up(func(ctx context.Context, r *run, c *checking, p *process) error {
			var errs []error
			for name, err := range r.kind.outcomes(ctx, p.conn, r.away(), c.name()) {
				switch status.Code(err) {
				case codes.Internal, codes.Unknown, codes.Unimplemented:
					errs = append(errs, fmt.Errorf("%s: %w", name, err))
				}
			}
			return errors.Join(errs...)
		}),
	},
	{
		ID:    "call.empty",
		Says:  "An empty request is answered like any other: no panic, and the process keeps running.",
		Fix:   "Check the required fields of a request and return InvalidArgument if one is missing.",
		after: configured,
		run:   up(checkEmpty),
	},
	{
		ID:    "call.cancel",
		Says:  "A call that its caller cancels ends in the plugin too, within 5 s, even if its backend does not answer.",
		Fix:   "Pass the call's context to everything that it waits for. A call that continues delays the end of the process, and so a swap.",
		after: append([]string{"stop.exit"}, configured...),
		run:   up(checkCancel),
	},
	{
		ID:    "call.killed",
		Says:  "If it is killed during its calls, a new process answers as before.",
		Fix:   "Keep no lock files and no half-written state. State that must last belongs into the backend, and another process may repeat any call.",
		after: configured,
		run:   checkKilled,
	},
	{
		ID:    "call.generations",
		Says:  "Two processes that run at the same time give the same answers, because a swap starts the new one beside the old one.",
		Fix:   "Do not hold a lock, a port or a file for the life of the process: another process of the plugin may run at the same time.",
		after: configured,
		run: func(ctx context.Context, r *run, c *checking) error {
			var answers [2]string
			var results [2]map[string]error
			var conns [2]grpc.ClientConnInterface
			for i := range conns {
				p, err := r.up(ctx, c)
				if err != nil {
					return fmt.Errorf("process %d: %w", i+1, err)
				}
				conns[i] = p.conn
			}
			for i, conn := range conns {
				answers[i] = r.kind.asked(ctx, conn, r.asked())
				results[i] = r.kind.outcomes(ctx, conn, r.away(), c.name())
			}
			if err := same("of one process", answers[0], "of the other", answers[1]); err != nil {
				return err
			}
			return alike("one process", results[0], "the other", results[1])
		},
	},
}

// name returns the name of the volumes and workloads of a check.
func (c *checking) name() string { return "conf-" + strings.ReplaceAll(c.check.ID, ".", "-") }

// alike compares the results of all methods.
func alike(a string, resultsA map[string]error, b string, resultsB map[string]error) error {
	for name, err := range resultsA {
		if was, is := outcome(err), outcome(resultsB[name]); was != is {
			return fmt.Errorf("%s of %s gives %.200q, of %s %.200q", name, a, was, b, is)
		}
	}
	return nil
}

func checkTogether(ctx context.Context, r *run, _ *checking, p *process) (err error) {
	alone := r.kind.asked(ctx, p.conn, r.asked())
	answers := make(chan string)
	const callers = 16
	for range callers {
		go func() { answers <- r.kind.asked(ctx, p.conn, r.asked()) }()
	}
	for range callers {
		if answer := <-answers; err == nil {
			err = same("alone", alone, "beside others", answer)
		}
	}
	return err
}

func checkEmpty(ctx context.Context, r *run, c *checking, p *process) error {
	methods := r.kind.service.Methods()
	results := make(chan error)
	for i := range methods.Len() {
		m := methods.Get(i)
		go func() {
			ctx, cancel := context.WithTimeout(ctx, hopeless)
			defer cancel()
			err := invokeEmpty(ctx, p.conn, m, r.away())
			if status.Code(err) == codes.Internal && strings.Contains(err.Error(), "panic") {
				results <- fmt.Errorf("%s: %w", m.Name(), err)
				return
			}
			results <- nil
		}()
	}
	var errs []error
	for range methods.Len() {
		errs = append(errs, <-results)
	}
	if p.ended(50 * time.Millisecond) {
		errs = append(errs, fmt.Errorf("its process has ended (%s)%s", p.exit(), p.lastWords()))
	} else if _, err := p.info(ctx); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// blocked starts all methods with a backend that does not answer, and returns when their requests have reached it.
// ended waits until they have returned.
func (p *process) blocked(ctx context.Context, c *checking) (ended func(), err error) {
	at, err := p.r.silent(c)
	if err != nil {
		return nil, err
	}
	var calls sync.WaitGroup
	for _, m := range p.r.kind.methods {
		calls.Go(func() { _ = m.call(ctx, p.conn, at, c.name()) })
	}
	timer := time.NewTimer(underway)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return calls.Wait, nil
}

func checkCancel(ctx context.Context, r *run, c *checking, p *process) error {
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, err := p.blocked(callCtx, c)
	if err != nil {
		return err
	}
	cancel()
	ended()
	// The caller's side ends at once. Whether the plugin's side has ended shows when the process stops, because
	// that waits for calls.
	if err := p.askToStop(ctx); err != nil {
		return err
	}
	if !p.ended(afterCancel) {
		return fmt.Errorf("calls that were cancelled %v ago still hold up the end of its process", afterCancel)
	}
	return nil
}

func checkKilled(ctx context.Context, r *run, c *checking) error {
	first, err := r.up(ctx, c)
	if err != nil {
		return err
	}
	before := r.kind.asked(ctx, first.conn, r.asked())
	results := r.kind.outcomes(ctx, first.conn, r.away(), c.name())
	ended, err := first.blocked(ctx, c)
	if err != nil {
		return err
	}
	if err := first.die(ctx); err != nil {
		return err
	}
	ended()
	second, err := r.up(ctx, c)
	if err != nil {
		return fmt.Errorf("after a kill: %w", err)
	}
	if err := same("before the kill", before, "after it", r.kind.asked(ctx, second.conn, r.asked())); err != nil {
		return err
	}
	return alike("the process that was killed", results, "the new one",
		r.kind.outcomes(ctx, second.conn, r.away(), c.name()))
}

// invokeEmpty calls a method with a request that has only the backend.
func invokeEmpty(ctx context.Context, conn grpc.ClientConnInterface, m protoreflect.MethodDescriptor,
	at backend,
) error {
	req, err := newMessage(m.Input())
	if err != nil {
		return err
	}
	res, err := newMessage(m.Output())
	if err != nil {
		return err
	}
	if f := m.Input().Fields().ByName("consul"); f != nil {
		req.Set(f, protoreflect.ValueOfMessage(at.consul.ToProto().ProtoReflect()))
	}
	if f := m.Input().Fields().ByName("driver"); f != nil {
		driver := &storagev1.Driver{Id: at.driver.ID, Endpoint: at.driver.Endpoint}
		req.Set(f, protoreflect.ValueOfMessage(driver.ProtoReflect()))
	}
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, path, req.Interface(), res.Interface())
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req.Interface()); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		if err := stream.RecvMsg(res.Interface()); err != nil {
			return err // io.EOF at the end of the stream
		}
		proto.Reset(res.Interface())
	}
}

func newMessage(d protoreflect.MessageDescriptor) (protoreflect.Message, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", d.FullName(), err)
	}
	return t.New(), nil
}

// held is a proxy before a backend: it passes nothing on until it is released, and reports when a request has
// arrived.
type held struct {
	backend
	came    chan struct{} // closed when a request has arrived
	release func()
}

// hold puts a held backend before the one on a socket, until the check is over.
func (r *run) hold(c *checking, socket string) (*held, error) {
	dir, err := r.folder()
	if err != nil {
		return nil, err
	}
	own := filepath.Join(dir, "s")
	l, err := net.Listen("unix", own)
	if err != nil {
		return nil, fmt.Errorf("make a backend that is slow: %w", err)
	}
	released := make(chan struct{})
	h := &held{backend: r.at(own, r.secret), came: make(chan struct{}), release: sync.OnceFunc(func() { close(released) })}
	coming := sync.OnceFunc(func() { close(h.came) })
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				first := make([]byte, 1)
				if _, err := io.ReadFull(conn, first); err != nil {
					return
				}
				coming()
				<-released
				pass(conn, first, socket)
			})
		}
	})
	c.ends(func() {
		_ = l.Close()
		h.release()
		serving.Wait() // the plugin's process has ended, and so have its connections
	})
	return h, nil
}

// pass copies bytes between a connection and a socket, until both sides have closed.
func pass(conn net.Conn, first []byte, socket string) {
	to, err := net.Dial("unix", strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(conn, to) // only its end matters
		_ = conn.Close()
	})
	if _, err := to.Write(first); err == nil {
		_, _ = io.Copy(to, conn)
	}
	_ = to.Close()
	back.Wait()
}
