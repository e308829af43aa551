package main

import (
	"context"
	"html/template"
	"log/slog"
	"net/http"
	"time"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/frontend"
)

// page is the front door. It has no configuration.
type page struct{}

// listenName is the name of the listen block.
const listenName = "http"

// callTimeout bounds a call of the API. While the agent is restarted, calls wait.
const callTimeout = 10 * time.Second

// Ready is called before this process takes over from another one: the API must answer.
func (*page) Ready(ctx context.Context, host frontend.Host) error {
	_, err := volumes(ctx, host.API)
	return err
}

// Serve serves the page until ctx ends.
func (*page) Serve(ctx context.Context, host frontend.Host) error {
	listener, err := host.Listen(listenName)
	if err != nil {
		return err
	}
	return frontend.ServeHTTP(ctx, listener, handler(host))
}

func handler(host frontend.Host) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		all, err := volumes(r.Context(), host.API)
		if err != nil {
			slog.Warn("the volumes could not be read", "error", err)
			http.Error(w, "The volumes cannot be read now; the agent's log says why.", http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_ = table.Execute(w, all) // fails only if the reader is gone
	})
	return mux
}

// volumes lists the volumes that the plugin's policy shows, of all namespaces.
func volumes(ctx context.Context, client *api.Client) ([]*hostv1.Volume, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := client.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{Namespace: "*"})
	if err != nil {
		return nil, err
	}
	return res.GetVolumes(), nil
}

var table = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<title>Volumes</title>
<h1>Volumes</h1>
<table>
<tr><th>Namespace<th>Volume<th>Driver
{{range .}}<tr><td>{{.GetSpec.GetNamespace}}<td>{{.GetSpec.GetId}}<td>{{.GetSpec.GetPluginId}}
{{else}}<tr><td colspan="3">There are none.
{{end}}</table>
`))
