package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/doctor"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

const (
	// examinePatience bounds an examination, and how long it waits for those of others.
	examinePatience = 20 * time.Second
	// examineKept is how long the findings are an answer to the next caller with the same rights, so that pages that are
	// kept up to date do not keep the host busy.
	examineKept = 10 * time.Second
)

// errExamines: callers with other rights were first.
var errExamines = errcode.Unavailable.New("other examinations of this host took too long: call again")

// examinations are made one at a time.
type examinations struct {
	turn chan struct{} // has a value while one is made

	mu  sync.Mutex
	all map[rights]*examination
	// unended are the checks that hang (doctor.Patient).
	unended sync.Map
}

// rights are what decides what a caller may see, and so what its examination finds.
type rights struct {
	accessor, certificate, plugin string
	root                          bool
}

// examination is one that is made, or was. Its fields are set when done is closed.
type examination struct {
	done  chan struct{}
	began time.Time
	ended time.Time
	found []doctor.Finding
	err   error
}

// fresh says that the findings are an answer for a caller of now.
func (e *examination) fresh() bool {
	select {
	case <-e.done:
		return e.err == nil && time.Since(e.ended) < examineKept
	default:
		return true
	}
}

// Examine makes the checks of pannier doctor.
func (s agentService) Examine(ctx context.Context, req *hostv1.ExamineRequest) (*hostv1.ExamineResponse, error) {
	if node := req.GetNode(); s.isOther(node) {
		if callerOf(ctx).bound != nil {
			return nil, fmt.Errorf("examine node %q: %w", shortened(node), errBoundNode)
		}
		return askNode(ctx, s.Server, req, node, examinePatience+nodePatience, nodeClients.Examine)
	}
	e, err := s.examine(ctx, secretOf(ctx))
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if e.err != nil {
		return nil, e.err
	}
	resp := &hostv1.ExamineResponse{Node: s.cfg.Name, At: timestamp(e.began)}
	for _, f := range e.found {
		resp.Findings = append(resp.Findings, &hostv1.Finding{
			Check: f.Check, Status: string(f.Status), Why: f.Why, Command: f.Command, Subject: f.Subject,
		})
	}
	return resp, nil
}

// examine returns the examination for a caller, and begins it if there is none. It goes on if its first caller leaves.
func (s *Server) examine(ctx context.Context, secret string) (*examination, error) {
	c := callerOf(ctx)
	who := rights{accessor: c.Accessor, plugin: c.plugin, root: c.isRoot(s.access)}
	if c.cert != nil {
		who.certificate = c.cert.String()
	}
	x := &s.examinations
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.all[who]; e != nil && e.fresh() {
		return e, nil
	}
	leave, ok := s.doors.enter()
	if !ok {
		return nil, errStopping
	}
	for other, e := range x.all {
		if !e.fresh() {
			delete(x.all, other)
		}
	}
	e := &examination{done: make(chan struct{})}
	x.all[who] = e
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.closing, cancel) //nolint:contextcheck // the server's closing, besides the first caller's context
	go func() {
		defer leave()
		defer cancel()
		defer stop()
		defer close(e.done)
		select {
		case x.turn <- struct{}{}:
			defer func() { <-x.turn }()
		case <-time.After(examinePatience):
			e.err = errExamines
			return
		case <-ctx.Done():
			e.err = errStopping
			return
		}
		ctx, cancel := context.WithTimeout(ctx, examinePatience)
		defer cancel()
		e.began = time.Now()
		p := s.cfg.Patient()
		p.Client, p.Unended = s.asCaller(secret), &x.unended
		e.found, e.err = doctor.Examine(ctx, p)
		e.ended = time.Now()
	}()
	return e, nil
}

// asCaller returns a client whose calls this server answers as if their caller had made them: the one in their context,
// with the secret of its token.
func (s *Server) asCaller(secret string) *api.Client {
	const here = "http://pannier"
	c := inProcess{s.api.Handler, secret}
	return &api.Client{
		Agent: hostv1connect.NewAgentServiceClient(c, here), Plugins: hostv1connect.NewPluginServiceClient(c, here),
		Workloads: hostv1connect.NewWorkloadServiceClient(c, here), Volumes: hostv1connect.NewVolumeServiceClient(c, here),
		Members: hostv1connect.NewMemberServiceClient(c, here), Operator: hostv1connect.NewOperatorServiceClient(c, here),
		Secrets: hostv1connect.NewSecretsServiceClient(c, here),
	}
}

// inProcess makes unary calls without a connection.
type inProcess struct {
	handler http.Handler
	secret  string
}

// Do implements connect.HTTPClient.
func (c inProcess) Do(r *http.Request) (*http.Response, error) {
	r.Header.Set(api.TokenHeader, c.secret)
	a := &heldAnswer{header: http.Header{}, code: http.StatusOK}
	c.handler.ServeHTTP(a, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.code, http.StatusText(a.code)), StatusCode: a.code, Header: a.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(a), ContentLength: int64(a.Len()),
		Request: r,
	}, nil
}
