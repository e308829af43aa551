package dockervolume

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestSlowDriver mounts a volume whose driver needs longer than the engine waits: the start goes on, and the next try
// has the volume.
func TestSlowDriver(t *testing.T) {
	t.Parallel()
	d := faultydriver.Start(t, faultydriver.Config{Mounts: true})
	socket := t.TempDir() + "/pannier.sock"
	h := testhost.New(t, fmt.Sprintf("csi_driver \"slow\" { endpoint = %q }\n", d.Endpoint())+
		strings.Replace(pluginBlock(t, "slow", "3s"), "/run/docker/plugins/pannier.sock", socket, 1), plugin)
	h.Start()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	engine := &http.Client{Transport: &http.Transport{DialContext: dial}}
	call := func(ctx context.Context, what string) (path string, err error) {
		req := check.Must(http.NewRequestWithContext(ctx, http.MethodPost, "http://plugin/VolumeDriver."+what,
			strings.NewReader(`{"Name": "data", "ID": "1", "Opts": {"size": "1MiB"}}`)))(t)
		resp, err := engine.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		var answer struct{ Mountpoint, Err string }
		var raw bytes.Buffer
		if _, err = raw.ReadFrom(resp.Body); err == nil {
			err = json.Unmarshal(raw.Bytes(), &answer)
		}
		if answer.Err != "" {
			err = errors.New(answer.Err)
		}
		return answer.Mountpoint, err
	}
	h.Eventually("the plugin answers", func() error { _, err := call(t.Context(), "Create"); return err })
	const engineWaits, stageTakes, pause = 3 * time.Second, 8 * time.Second, 3 * time.Second
	d.Script("NodeStageVolume", faultydriver.Delay(stageTakes))
	h.Eventually("a try has the volume", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), engineWaits)
		defer cancel()
		_, err := call(ctx, "Mount")
		if err != nil {
			<-time.After(pause) // until somebody starts the container again
		}
		return err
	})
	if stages, unstages := len(d.Calls("NodeStageVolume")), len(d.Calls("NodeUnstageVolume")); stages != 1 || unstages != 0 {
		t.Errorf("it was staged %d times, and unstaged %d times", stages, unstages)
	}
	check.Must(call(t.Context(), "Unmount"))(t)
	(&rig{Host: h}).awaitFree(t, "data")
	h.NothingInUse()
}
