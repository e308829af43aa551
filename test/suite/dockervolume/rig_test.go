package dockervolume

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/docker"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testns"
)

// sideBySide is the number of parallel tests. They mostly wait.
const sideBySide = 3

func TestMain(m *testing.M) { testns.Main(m, sideBySide) }

const (
	plugin = "docker-volume"
	// image has a shell and keeps running.
	image = "shell"
	// space is the namespace of the volumes.
	space = "docker"
)

// rig is a host with a container engine that uses its volumes.
type rig struct {
	*testhost.Host
	*docker.Daemon
}

// pluginBlock is that of docs/docker.md, for a driver. A refused Mount is answered soon.
func pluginBlock(t *testing.T, driver, timeout string) string {
	t.Helper()
	return strings.Replace(docpages.Block(t, "docker.md", "config", plugin), `driver = "local"`,
		fmt.Sprintf("driver = %q\n    timeout = %q", driver, timeout), 1)
}

// start starts an engine, and a host with ACLs in its mount namespace.
func start(t *testing.T) *rig {
	t.Helper()
	d := docker.Start(t, "volumes of containers", "--live-restore")
	d.Image(t, image, `CMD ["sleep", "1000"]`)
	h := testhost.New(t, testhost.LocalDriver(t)+pluginBlock(t, "local", "3s")+`
leave_plugins_on_stop = false
acl {
  enabled = true
}
`, plugin)
	h.Namespace = d.PID()
	h.Start()
	h.Run("acl", "policy", "apply", plugin, h.Write("policy.hcl", docpages.Block(t, "acl.md", "policy", plugin)))
	return &rig{h, d}
}

// docker runs a docker command that must succeed.
func (r *rig) docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.Daemon.Try(args...)
	if err != nil {
		t.Fatalf("docker %s: %v\n%s\n%s", strings.Join(args, " "), err, out, r.LogTail())
	}
	return out
}

// refused runs a docker command that must fail and print each of the words.
func (r *rig) refused(t *testing.T, words []string, args ...string) {
	t.Helper()
	out, err := r.Daemon.Try(args...)
	if err == nil {
		t.Fatalf("docker %s was not refused:\n%s", strings.Join(args, " "), out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("docker %s does not say %q:\n%s", strings.Join(args, " "), w, out)
		}
	}
}

// claims returns the claims of a volume of a container.
func claims(t *testing.T, h *testhost.Host, volume string) []*hostv1.Claim {
	t.Helper()
	res, err := h.Client().Volumes.GetVolume(testhost.Soon(t), &hostv1.GetVolumeRequest{Namespace: space, Id: volume})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetVolume().GetClaims()
}

// awaitFree waits until a volume has no claims.
func (r *rig) awaitFree(t *testing.T, volume string) {
	t.Helper()
	r.Eventually("volume "+volume+" is free", func() error {
		if held := claims(t, r.Host, volume); len(held) > 0 {
			return fmt.Errorf("it has the claims %v", held)
		}
		return nil
	})
}

// held checks that the volume's workload holds its only claim.
func (r *rig) held(t *testing.T, volume string) {
	t.Helper()
	held := claims(t, r.Host, volume)
	if len(held) != 1 || held[0].GetState() != "taken" || held[0].GetWorkload() != "docker-volume."+volume+"."+r.Name {
		t.Fatalf("volume %q has the claims %v", volume, held)
	}
}

// inspect prints one field of `docker volume inspect`.
func (r *rig) inspect(t *testing.T, volume, field string) string {
	t.Helper()
	return strings.TrimSpace(r.docker(t, "volume", "inspect", "--format", "{{"+field+"}}", volume))
}

// awaitSeen waits until the plugin has seen the holders of all Mounts.
func (r *rig) awaitSeen(t *testing.T, volume string, mounts int) {
	t.Helper()
	r.Eventually("the holders of "+volume+" are seen", func() error {
		got := r.inspect(t, volume, ".Status.mounts") + " " + r.inspect(t, volume, ".Status.seen")
		if want := fmt.Sprintf("%d %d", mounts, mounts); got != want {
			return errors.New(got)
		}
		return nil
	})
}
