package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/sdk/api"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// ServePlugin serves a request that came over a plugin's own connection: a front door's. secret is the plugin's token;
// a request that has a token, such as that of the door's user, keeps it, and so does one whose token is empty, which is
// that of a user without one. The plugin has no rights but the token's, whichever user it runs as. Requests end with
// Close as all others do.
func (s *Server) ServePlugin(w http.ResponseWriter, r *http.Request, plugin, secret string) {
	if !s.doors.TryRLock() {
		_ = refusals.Write(w, r, connect.NewError(connect.CodeUnavailable, call.ErrStopping))
		return
	}
	defer s.doors.RUnlock()
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), pluginKey{}, plugin))
	defer cancel(nil)
	//nolint:contextcheck // Close's, besides the request's
	defer context.AfterFunc(s.running, func() { cancel(call.ErrStopping) })()
	r = r.Clone(ctx)
	for _, agents := range []string{call.ForwardedHeader, callHeader} {
		r.Header.Del(agents)
	}
	if _, ofUser := r.Header[api.TokenHeader]; secret != "" && !ofUser {
		r.Header.Set(api.TokenHeader, secret)
	}
	s.api.Handler.ServeHTTP(w, r)
}

type pluginKey struct{}

// pluginOf returns the plugin that a request came from; empty: it came from elsewhere.
func pluginOf(ctx context.Context) string {
	name, _ := ctx.Value(pluginKey{}).(string)
	return name
}

// closeDoors refuses further requests of plugins, and waits until the others are answered or ctx ends.
func (s *Server) closeDoors(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		s.doors.Lock()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("requests of plugins have not ended: %w", ctx.Err())
	}
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
