package nomad

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testns"
)

// sideBySide is the number of parallel tests. They mostly wait.
const sideBySide = 3

func TestMain(m *testing.M) { testns.Main(m, sideBySide) }

const plugin = "nomad-api"

// rig is a host with the front door on a unix socket, and a driver that lists its volumes and takes snapshots.
type rig struct {
	*testhost.Host
	// nomad is a client without a token.
	nomad *api.Client
}

// start starts a host with a driver of its own, and more configuration.
func start(t *testing.T, more string) *rig {
	t.Helper()
	return startWith(t, hostpathDriver(t)+more)
}

func startWith(t *testing.T, configuration string) *rig {
	t.Helper()
	h := testhost.New(t, configuration, plugin)
	r := &rig{Host: h}
	h.Write("agent.hcl", read(t, h.Path("agent.hcl"))+fmt.Sprintf(`
plugin %q {
  listen "nomad" {
    address = "unix://%s"
  }
  api {
    policy = %q
  }
}
`, plugin, r.door(), plugin))
	h.Start()
	r.nomad = r.client(t, "")
	r.Eventually("the front door serves", func() error {
		_, err := r.nomad.Regions().List()
		return err
	})
	return r
}

func hostpathDriver(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf(`
csi_driver "hostpath" {
  command = [%q, "-drivername", "hostpath.csi.k8s.io", "-endpoint", "${endpoint}", "-nodeid", "${node.name}-at-hostpath", "-statedir", "${data_dir}/volumes", "-enable-attach"]
  settle_time = "1s"
}
`, hostpath.Binary(t))
}

// door is the path of the front door's socket.
func (r *rig) door() string { return r.Path("nomad.sock") }

// client returns a client of the front door with a token; empty: without one.
func (r *rig) client(t *testing.T, token string) *api.Client {
	t.Helper()
	c, err := api.NewClient(&api.Config{Address: "unix://" + r.door(), SecretID: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// definition is a volume as Nomad's command line sends it.
func definition(id string, change ...func(v *api.CSIVolume)) *api.CSIVolume {
	v := &api.CSIVolume{
		ID: id, Name: id, PluginID: "hostpath", RequestedCapacityMin: 1 << 20, RequestedCapacityMax: 1 << 30,
		RequestedCapabilities: []*api.CSIVolumeCapability{{
			AccessMode: api.CSIVolumeAccessModeSingleNodeWriter, AttachmentMode: api.CSIVolumeAttachmentModeFilesystem,
		}},
	}
	for _, c := range change {
		c(v)
	}
	return v
}

// create creates a volume that must be created.
func (r *rig) create(t *testing.T, v *api.CSIVolume) *api.CSIVolume {
	t.Helper()
	made, _, err := r.nomad.CSIVolumes().Create(v, &api.WriteOptions{Namespace: v.Namespace})
	if err != nil {
		t.Fatalf("create volume %q: %v\n%s", v.ID, err, r.LogTail())
	}
	if len(made) != 1 {
		t.Fatalf("volumes %v were created", made)
	}
	return made[0]
}

// claim has a workload claim a volume, which is released when the test ends.
func (r *rig) claim(t *testing.T, workload, volume string) {
	t.Helper()
	r.Run("workload", "start", r.Write(workload+".hcl", fmt.Sprintf(`
workload %q {
  volume "data" {
    source      = %q
    destination = "/data"
  }
}
`, workload, volume)))
	t.Cleanup(func() { r.Try("workload", "stop", workload) })
}

// remove deletes a volume as Terraform's provider does.
func remove(client *api.Client, id string, o *api.WriteOptions) error {
	return client.CSIVolumes().Delete(id, o) //nolint:staticcheck // deprecated, but it is what the provider calls
}

// refused checks an error's status and text.
func refused(t *testing.T, err error, status int, says ...string) {
	t.Helper()
	var unexpected api.UnexpectedResponseError
	if !errors.As(err, &unexpected) {
		t.Errorf("got %v, want the status %d", err, status)
		return
	}
	if unexpected.StatusCode() != status {
		t.Errorf("got the status %d (%s), want %d", unexpected.StatusCode(), unexpected.Body(), status)
	}
	for _, text := range says {
		if !strings.Contains(unexpected.Body(), text) {
			t.Errorf("%q does not say %q", unexpected.Body(), text)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
