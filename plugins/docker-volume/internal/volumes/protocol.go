package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
)

// request is the body of all calls. Activate, Capabilities and Podman's List have none.
type request struct {
	Name string
	Opts map[string]string
	ID   string
}

// answer is the body of all answers that the engine reads nothing of but these fields.
type answer struct {
	Mountpoint string `json:",omitempty"`
	Err        string
}

const (
	contentType = "application/vnd.docker.plugins.v1.1+json"
	maxBody     = 1 << 20
)

// errLost is the answer to a request without a body: when a process of this plugin ends during a call, Docker repeats
// the call, but its body was read already.
var errLost = errors.New("the request came without its body, as Docker repeats one that was under way when the plugin " +
	"was restarted: run the command again")

// handler serves the protocol.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	// serve reads a request, whole: only then does net/http notice that the caller is gone. Connections are not kept:
	// Docker would send a request again, without its body, if a process closed the connection that it came on.
	serve := func(path string, call func(ctx context.Context, r request) (any, error)) {
		mux.HandleFunc("POST /"+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close")
			w.Header().Set("Content-Type", contentType)
			var req request
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
			if err == nil && len(body) > 0 {
				if err = json.Unmarshal(body, &req); err != nil {
					err = fmt.Errorf("read the request: %w", err)
				}
			}
			var res any
			if err == nil {
				res, err = call(r.Context(), req)
			}
			if err != nil {
				if !errors.Is(err, errNoVolume) { // how Docker asks whether a volume exists
					s.log.Warn("a call failed", "call", r.URL.Path, "volume", req.Name, "error", err)
				}
				w.WriteHeader(http.StatusInternalServerError)
				res = answer{Err: text(err)}
			}
			_ = json.NewEncoder(w).Encode(res) // fails only if the caller is gone
		})
	}
	// named is for calls about a volume.
	named := func(path string, call func(ctx context.Context, r request) (any, error)) {
		serve(path, func(ctx context.Context, r request) (any, error) {
			if r.Name == "" {
				return nil, errLost
			}
			return call(ctx, r)
		})
	}
	serve("Plugin.Activate", func(context.Context, request) (any, error) {
		return map[string]any{"Implements": []string{"VolumeDriver"}}, nil
	})
	serve("VolumeDriver.Capabilities", func(context.Context, request) (any, error) {
		// A name is one volume on all hosts of the cluster, in the ledger's namespace.
		return map[string]any{"Capabilities": map[string]any{"Scope": "global"}}, nil
	})
	serve("VolumeDriver.List", func(ctx context.Context, _ request) (any, error) {
		all, err := s.list(ctx)
		return map[string]any{"Volumes": all, "Err": ""}, err
	})
	named("VolumeDriver.Get", func(ctx context.Context, r request) (any, error) {
		v, err := s.get(ctx, r.Name)
		return map[string]any{"Volume": v, "Err": ""}, err
	})
	named("VolumeDriver.Create", func(ctx context.Context, r request) (any, error) {
		return answer{}, s.create(ctx, r.Name, r.Opts)
	})
	named("VolumeDriver.Remove", func(ctx context.Context, r request) (any, error) {
		return answer{}, s.remove(ctx, r.Name)
	})
	named("VolumeDriver.Mount", func(ctx context.Context, r request) (any, error) {
		path, err := s.mount(ctx, r.Name, r.ID)
		return answer{Mountpoint: path}, err
	})
	named("VolumeDriver.Unmount", func(ctx context.Context, r request) (any, error) {
		return answer{}, s.unmount(ctx, r.Name, r.ID)
	})
	named("VolumeDriver.Path", func(ctx context.Context, r request) (any, error) {
		path, err := s.path(ctx, r.Name)
		return answer{Mountpoint: path}, err
	})
	return mux
}

// text is an error without the names of the API's codes.
func text(err error) string {
	if failed := (*connect.Error)(nil); errors.As(err, &failed) && err.Error() == failed.Error() {
		return failed.Message()
	}
	return err.Error()
}
