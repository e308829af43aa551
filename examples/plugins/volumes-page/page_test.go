package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/sdk/frontend"
)

// volumeService is a host's API with one volume.
type volumeService struct {
	hostv1connect.UnimplementedVolumeServiceHandler
}

func (volumeService) ListVolumes(context.Context, *hostv1.ListVolumesRequest) (*hostv1.ListVolumesResponse, error) {
	return &hostv1.ListVolumesResponse{Volumes: []*hostv1.Volume{
		{Spec: &hostv1.VolumeSpec{Namespace: "default", Id: "<data>", PluginId: "local"}},
	}}, nil
}

// host returns a host with that API, and the address that the page is served at.
func host(t *testing.T, service hostv1connect.VolumeServiceHandler) (_ frontend.Host, address string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(hostv1connect.NewVolumeServiceHandler(service))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := api.New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return frontend.Host{
		API: client, Listen: func(string) (net.Listener, error) { return listener, nil },
	}, listener.Addr().String()
}

func TestPage(t *testing.T) {
	h, address := host(t, volumeService{})
	if err := (&page{}).Ready(t.Context(), h); err != nil {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- (&page{}).Serve(ctx, h) }()
	res, err := http.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(text), "<td>default<td>&lt;data&gt;<td>local") {
		t.Errorf("%s, %v", text, err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestWithoutAnAPI(t *testing.T) {
	h, _ := host(t, hostv1connect.UnimplementedVolumeServiceHandler{})
	if err := (&page{}).Ready(t.Context(), h); err == nil {
		t.Error("it is ready")
	}
	w := httptest.NewRecorder()
	handler(h).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusBadGateway {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}
