package apiserver

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/apiserver/call"
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
	turn chan struct{} // has a value while one is made, or looked for
	// made are those that are an answer still, by whose they are.
	made map[rights]*hostv1.ExamineResponse
	// unended are the checks that hang (doctor.Patient).
	unended sync.Map
}

// rights are what decides what a caller may see, and so what its examination finds.
type rights struct {
	accessor, certificate, plugin string
	root                          bool
}

// Examine makes the checks of pannier doctor, unless they were just made for such a caller.
func (s agentService) Examine(ctx context.Context, req *hostv1.ExamineRequest) (*hostv1.ExamineResponse, error) {
	c := call.CallerOf(ctx)
	if node := req.GetNode(); s.isOther(node) {
		if c.Bound != nil {
			return nil, fmt.Errorf("examine node %q: %w", call.Shortened(node), errBoundNode)
		}
		return askNode(ctx, s.Server, req, node, examinePatience+nodePatience, nodeClients.Examine)
	}
	x := &s.examinations
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-time.After(examinePatience):
		return nil, errExamines
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	maps.DeleteFunc(x.made, func(_ rights, r *hostv1.ExamineResponse) bool {
		return time.Since(r.GetAt().AsTime()) > examineKept
	})
	who := rights{accessor: c.Accessor, plugin: c.Plugin, root: c.Root}
	if c.Cert != nil {
		who.certificate = c.Cert.String()
	}
	if made := x.made[who]; made != nil {
		return made, nil
	}
	checking, cancel := context.WithTimeout(ctx, examinePatience)
	defer cancel()
	p := s.cfg.Patient()
	p.Client, p.Unended = s.asCaller(call.SecretOf(ctx)), &x.unended
	found, err := doctor.Examine(checking, p)
	if err == nil {
		err = context.Cause(ctx) // of a caller who left, the checks are not complete
	}
	if err != nil {
		return nil, err
	}
	x.made[who] = &hostv1.ExamineResponse{Node: s.cfg.Name, At: call.Time(time.Now())}
	for _, f := range found {
		x.made[who].Findings = append(x.made[who].Findings, &hostv1.Finding{
			Check: f.Check, Status: string(f.Status), Why: f.Why, Command: f.Command, Subject: f.Subject,
		})
	}
	return x.made[who], nil
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
