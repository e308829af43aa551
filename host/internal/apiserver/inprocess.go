package apiserver

import (
	"fmt"
	"io"
	"net/http"

	"github.com/pannier/pannier/sdk/api"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

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
