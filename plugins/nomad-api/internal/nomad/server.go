package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// server answers requests.
type server struct {
	api    *api.Client
	config func() *config
	// serving ends when this process is to finish what it has accepted.
	serving context.Context
	log     *slog.Logger
}

const (
	// tokenHeader has the secret of the caller's ACL token; an Authorization header may have it too.
	tokenHeader = "X-Nomad-Token"
	// maxBody bounds a request, in bytes.
	maxBody = 1 << 20
)

// answer is what a call returns: a value that becomes JSON, and what it was read from. next is the token of a list's
// next page; empty: there is none.
type answer struct {
	value any
	meta  *hostv1.ReadMeta
	next  string
}

// call answers one request. The context has the caller's token.
type call func(ctx context.Context, q query, r *http.Request) (answer, error)

// handler has the routes. Nomad takes PUT and POST alike.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	serve := func(methods, path string, call call) {
		for method := range strings.FieldsSeq(methods) {
			mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, call) })
		}
	}
	serve("GET", "/v1/volumes", s.listVolumes)
	serve("GET", "/v1/volumes/external", s.listExternal)
	serve("GET", "/v1/volumes/snapshot", s.listSnapshots)
	serve("PUT POST", "/v1/volumes/snapshot", s.createSnapshot)
	serve("DELETE", "/v1/volumes/snapshot", s.deleteSnapshot)
	serve("GET", "/v1/volume/csi/{id}", s.readVolume)
	serve("PUT POST", "/v1/volume/csi/{id}", s.registerVolume)
	serve("DELETE", "/v1/volume/csi/{id}", s.deregisterVolume)
	serve("PUT POST", "/v1/volume/csi/{id}/create", s.createVolume)
	serve("DELETE", "/v1/volume/csi/{id}/delete", s.deleteVolume)
	serve("DELETE", "/v1/volume/csi/{id}/detach", s.detachVolume)
	serve("GET", "/v1/plugins", s.listPlugins)
	serve("GET", "/v1/plugin/csi/{id}", s.readPlugin)
	serve("GET", "/v1/nodes", s.listNodes)
	serve("GET", "/v1/node/{id}", s.readNode)
	serve("PUT POST", "/v1/search", s.search)
	serve("GET", "/v1/agent/self", s.readSelf)
	serve("GET", "/v1/status/leader", s.readLeader)
	serve("GET", "/v1/regions", s.listRegions)
	serve("GET", "/v1/namespaces", s.listNamespaces)
	serve("GET", "/v1/namespace/{name}", s.readNamespace)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, notFound("Pannier has no %s %s: of Nomad's API it has volumes, plugins, nodes, search, and what "+
			"clients need for these", r.Method, r.URL.EscapedPath()))
	})
	return mux
}

// serve answers one request.
func (s *server) serve(w http.ResponseWriter, r *http.Request, call call) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	var a answer
	q, err := s.readQuery(r)
	if err == nil {
		a, err = call(api.WithCaller(r.Context(), tokenOf(r)), q, r)
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if a.next != "" {
		w.Header().Set("X-Nomad-Nexttoken", a.next)
	}
	if a.meta == nil {
		a.meta = &hostv1.ReadMeta{KnownLeader: true}
	}
	setMeta(w, a.meta)
	write(w, r, a.value)
}

// tokenOf returns the secret that a request has; empty: none.
func tokenOf(r *http.Request) string {
	if secret := r.Header.Get(tokenHeader); secret != "" {
		return secret
	}
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

// write writes an answer as JSON. It fails only if the caller is gone.
func write(w http.ResponseWriter, r *http.Request, value any) {
	text, err := json.Marshal(value)
	if _, pretty := r.URL.Query()["pretty"]; pretty && err == nil {
		text, err = json.MarshalIndent(value, "", "    ")
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("write the answer: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n'))
}

// read reads a request's JSON. Fields that are not known are ignored, as clients of all versions send many.
func read(r *http.Request, into any) error {
	body, err := io.ReadAll(r.Body)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &statusError{
			code: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("the request has more than %d bytes", tooLarge.Limit),
		}
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return badRequest("the request is not what is expected: %v", err)
	}
	return nil
}

// statusError is an error with its HTTP status.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// permissionDenied begins the text of a refusal: Nomad's clients know it by that.
const permissionDenied = "Permission denied"

// refuse writes an error as Nomad does: a status, and a plain text.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code, text := http.StatusInternalServerError, err.Error()
	var own *statusError
	var failed *connect.Error
	switch {
	case errors.As(err, &own):
		code = own.code
	case errors.As(err, &failed):
		if err.Error() == failed.Error() {
			text = failed.Message() // without the name of the code
		}
		switch failed.Code() {
		case connect.CodePermissionDenied, connect.CodeUnauthenticated:
			code, text = http.StatusForbidden, permissionDenied+": "+text
		case connect.CodeNotFound:
			code = http.StatusNotFound
		case connect.CodeInvalidArgument:
			code = http.StatusBadRequest
		}
	}
	if code == http.StatusInternalServerError && r.Context().Err() == nil {
		s.log.Warn("a call failed", "method", r.Method, "call", r.URL.Path, "error", err)
	}
	http.Error(w, text, code)
}

// missing reports whether an error of the API means that there is no such object.
func missing(err error) bool { return connect.CodeOf(err) == connect.CodeNotFound }

// denied reports whether an error of the API means that the caller lacks a permission.
func denied(err error) bool { return connect.CodeOf(err) == connect.CodePermissionDenied }
