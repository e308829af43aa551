package nomad

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// terraform is a folder in which the real Terraform or OpenTofu runs, with the real provider.
type terraform struct {
	t            *testing.T
	program, dir string
}

// newTerraform prepares a folder, or skips the test where the programs are missing. They are not built here: the
// provider's module needs that of Nomad itself, which is not open source.
func newTerraform(t *testing.T) *terraform {
	t.Helper()
	program, err := exec.LookPath("terraform")
	if err != nil {
		if program, err = exec.LookPath("tofu"); err != nil {
			t.Skip("there is neither terraform nor tofu in PATH")
		}
	}
	provider, err := exec.LookPath("terraform-provider-nomad")
	if err != nil {
		t.Skip("there is no terraform-provider-nomad in PATH (its source: github.com/hashicorp/terraform-provider-nomad)")
	}
	tf := &terraform{t: t, program: program, dir: t.TempDir()}
	tf.write("cli.tfrc", fmt.Sprintf("provider_installation {\n  dev_overrides {\n    \"hashicorp/nomad\" = %q\n  }\n}\n",
		filepath.Dir(provider)))
	return tf
}

func (tf *terraform) write(name, text string) {
	tf.t.Helper()
	check.NoError(tf.t, os.WriteFile(filepath.Join(tf.dir, name), []byte(text), 0o600))
}

// run runs a command that must end with an exit code.
func (tf *terraform) run(code int, args ...string) string {
	tf.t.Helper()
	cmd := exec.CommandContext(testhost.Soon(tf.t), tf.program, args...)
	cmd.Dir = tf.dir
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(tf.dir, "cli.tfrc"), "CHECKPOINT_DISABLE=1",
		"TF_IN_AUTOMATION=1", "TF_INPUT=0")
	out, _ := cmd.CombinedOutput() // its exit code says it
	if cmd.ProcessState.ExitCode() != code {
		tf.t.Fatalf("%s: exit code %d, want %d\n%s", cmd, cmd.ProcessState.ExitCode(), code, out)
	}
	return string(out)
}

// The exit codes of plan -detailed-exitcode.
const (
	nothingToDo = 0
	changes     = 2
)

func (tf *terraform) plan(code int) {
	tf.t.Helper()
	tf.run(code, "plan", "-no-color", "-detailed-exitcode")
}

// apply makes the changes, after which there are none.
func (tf *terraform) apply() {
	tf.t.Helper()
	tf.plan(changes)
	tf.run(0, "apply", "-no-color", "-auto-approve")
	tf.plan(nothingToDo)
}

// The example of the repository, with the real programs: volumes are created, registered, changed, taken over
// and destroyed, and a plan after each of these is empty.
func TestTerraform(t *testing.T) {
	t.Parallel()
	tf := newTerraform(t)
	r := start(t, "")
	existing := r.create(t, definition("archived", func(v *api.CSIVolume) { v.Namespace = "shop" }))
	check.NoError(t, r.nomad.CSIVolumes().Deregister("archived", false, &api.WriteOptions{Namespace: "shop"}))
	example := read(t, filepath.Join(testbin.Root(), "examples/terraform/main.tf"))
	replace := func(old, with string) {
		t.Helper()
		if strings.Count(example, old) != 1 {
			t.Fatalf("the example has %q %d times", old, strings.Count(example, old))
		}
		example = strings.Replace(example, old, with, 1)
	}
	replace("unix:///run/pannier/nomad.sock", "unix://"+r.door())
	replace("vol-0123456789", existing.ExternalID)
	replace("prevent_destroy = true", "prevent_destroy = false")
	tf.write("main.tf", example)

	tf.apply()
	shop := &api.QueryOptions{Namespace: "shop"}
	v, _, err := r.nomad.CSIVolumes().Info("data", shop)
	check.NoError(t, err)
	if v.RequestedCapacityMin != 10<<30 || v.MountOptions == nil || v.MountOptions.FSType != "ext4" {
		t.Errorf("the volume is %+v", v)
	}
	if _, _, err := r.nomad.CSIVolumes().Info("archive", shop); err != nil {
		t.Error(err)
	}

	replace("\"10GiB\"", "\"15GiB\"")
	tf.write("main.tf", example)
	tf.apply()
	if v, _, err = r.nomad.CSIVolumes().Info("data", shop); err != nil || v.RequestedCapacityMin != 15<<30 || v.Capacity < 15<<30 {
		t.Errorf("grown: %+v, %v", v, err)
	}

	// What the state has lost is taken over by the next apply. (An import by the provider's version 2.6.1 fails by an
	// error of its own before it has read the volume: Value Conversion Error.)
	tf.run(0, "state", "rm", "nomad_csi_volume.data", "nomad_csi_volume_registration.archive")
	tf.apply()

	tf.run(0, "destroy", "-no-color", "-auto-approve")
	left, _, err := r.nomad.CSIVolumes().List(&api.QueryOptions{Namespace: "*"})
	if err != nil || len(left) != 0 {
		t.Errorf("after the end there are %v, %v", left, err)
	}
	at, _, err := r.nomad.CSIVolumes().ListExternal("hostpath", nil)
	if err != nil || len(at.Volumes) != 1 || at.Volumes[0].ExternalID != existing.ExternalID {
		t.Errorf("the driver has %+v, %v: want the one that was only registered", at, err)
	}
}
