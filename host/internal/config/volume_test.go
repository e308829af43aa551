package config

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

const goodVolume = `id = "v"
type = "csi"
plugin_id = "p"
capability {
  access_mode = "single-node-writer"
  attachment_mode = "file-system"
}
`

func TestVolumeIsRead(t *testing.T) {
	dir := t.TempDir()
	password := filepath.Join(dir, "pw")
	check.NoError(t, os.WriteFile(password, []byte("geheim\n"), 0o600))
	src := `
id = "mysql"
name = "MySQL"
type = "csi"
namespace = "prod"
plugin_id = "hostpath"
external_id = "vol-0abc"
capacity_min = "10GiB"
capacity_max = 21474836480
clone_id = "other"
capability {
  access_mode = "single-node-writer"
  attachment_mode = "file-system"
}
capability {
  access_mode = "multi-node-multi-writer"
  attachment_mode = "block-device"
}
mount_options {
  fs_type = "ext4"
  mount_flags = ["noatime"]
  volume_mount_group = "7"
}
topology_request {
  required {
    topology {
      segments { rack = "R1" }
    }
  }
  preferred {
    topology {
      segments { rack = "R2" }
    }
    topology {
      segments { rack = "R3" }
    }
  }
}
secrets { username = "admin" }
secrets_from { password = "file://` + password + `" }
parameters {
  skuname = "Premium"
  size = 5
  fast = "true"
}
context { endpoint = "http://192.0.2.1:9425" }
`
	got := check.Must(ParseVolume("v.hcl", []byte(src)))(t)
	topology := func(rack string) *hostv1.Topology {
		return &hostv1.Topology{Segments: map[string]string{"rack": rack}}
	}
	want := &hostv1.VolumeSpec{
		Id: "mysql", Name: "MySQL", Type: "csi", Namespace: "prod", PluginId: "hostpath", ExternalId: "vol-0abc",
		CapacityMin: 10 << 30, CapacityMax: 20 << 30, CloneId: "other",
		Capabilities: []*hostv1.VolumeCapability{
			{AccessMode: "single-node-writer", AttachmentMode: "file-system"},
			{AccessMode: "multi-node-multi-writer", AttachmentMode: "block-device"},
		},
		MountOptions: &hostv1.MountOptions{FsType: "ext4", MountFlags: []string{"noatime"}, VolumeMountGroup: "7"},
		TopologyRequest: &hostv1.TopologyRequest{
			Required: []*hostv1.Topology{topology("R1")}, Preferred: []*hostv1.Topology{topology("R2"), topology("R3")},
		},
		Secrets:    map[string]string{"username": "admin", "password": "geheim"},
		Parameters: map[string]string{"skuname": "Premium", "size": "5", "fast": "true"},
		Context:    map[string]string{"endpoint": "http://192.0.2.1:9425"},
	}
	if !proto.Equal(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

func TestVolumeDefaults(t *testing.T) {
	got := check.Must(ParseVolume("v.hcl", []byte(goodVolume)))(t)
	if got.Name != "" || got.Namespace != "" { // the API's server knows what they are
		t.Fatalf("name %q, namespace %q", got.Name, got.Namespace)
	}
}

func TestBadVolumes(t *testing.T) {
	long := strings.Repeat("a", 129)
	with := func(line string) string { return goodVolume + line + "\n" }
	for pair := range slices.Chunk([]string{
		with(`capacity_mni = 1`), `v.hcl:8: unsupported argument "capacity_mni"; did you mean "capacity_min"?`,
		with(`colour = 1`), `v.hcl:8: unsupported argument "colour"`,
		with(`secret { a = "b" }`), `v.hcl:8: unsupported block "secret"; did you mean "secrets"?`,
		with(`mount_options = [{}]`),
		`v.hcl:8: unsupported argument "mount_options"; did you mean to define a block of type "mount_options"?`,
		with("capacity_mni = 1\ncolour = 2\nname = 3"),
		`v.hcl:8: unsupported argument "capacity_mni"; did you mean "capacity_min"?` + "\n" +
			`v.hcl:9: unsupported argument "colour"` + "\n" +
			`v.hcl:10: name: a string is required, not a number`,
		with(`name = `), `v.hcl:8: name: a value is required after the equals sign`,
		with(`id = "w"`), `v.hcl:8: "id" was already set on line 1`,
		with("mount_options {}\nmount_options {}"), `v.hcl:9: mount_options: block given twice, first on line 8`,
		with("mount_options {\n fstype = \"ext4\"\n}"),
		`v.hcl:9: mount_options: unsupported argument "fstype"; did you mean "fs_type"?`,
		with(`name = 5`), `v.hcl:8: name: a string is required, not a number`,
		with("mount_options {\nmount_flags = [1]\n}"),
		`v.hcl:9: mount_options: mount_flags: element 0: a string is required, not a number`,
		with("mount_options {\nmount_flags = \"ro\"\n}"),
		`v.hcl:9: mount_options: mount_flags: a list of strings is required, not a string`,
		with(`capacity_min = "ten"`), `v.hcl:8: capacity_min: "ten" is not a size such as "10GiB"`,
		with(`capacity_min = -1`), `v.hcl:8: capacity_min: a whole number from 0 to 9223372036854775807 is required`,
		with(`capacity_min = 1.5`), `v.hcl:8: capacity_min: a whole number from 0 to 9223372036854775807 is required`,
		with(`capacity_min = "100EiB"`), `v.hcl:8: capacity_min: "100EiB" is not a size such as "10GiB"`,
		with("capacity_min = 2\ncapacity_max = 1"), `v.hcl:8: capacity_min: is 2 bytes, which is more than capacity_max, 1`,
		with("clone_id = \"a\"\nsnapshot_id = \"b\""),
		`v.hcl:9: snapshot_id: is given beside clone_id: a volume is made of one of them at most`,
		with(`name = "${x}"`), `v.hcl:8: name: variables are not allowed here; write $${ for a literal ${`,
		with(`name = "\u0000"`), `v.hcl:8: name: must not contain a NUL character`,
		with(`namespace = "../x"`),
		`v.hcl:8: namespace: "../x" has the character '/': only a-z, A-Z, 0-9, '-', '_' and '.' are allowed`,
		with("topology_request {\nrequired {\ntopology {}\n}\n}"),
		`v.hcl:10: topology_request: required: topology: a segments block with at least one key is required`,
		with("parameters {\na = []\n}"), `v.hcl:9: parameters.a: a string is required, not a list`,
		with("secrets {\na = \"geheim${x}\"\n}"),
		`v.hcl:9: secrets.a: a plain string is required; write $${ for a literal ${`,
		with("secrets {\na = \"b\"\n}\nsecrets_from {\na = \"file:///x\"\n}"),
		`v.hcl:12: secrets_from.a: the same key is in secrets`,
		with("secrets_from {\na = \"geheim\"\n}"), `v.hcl:9: secrets_from.a: is not file:// and an absolute path`,
		with("secrets_from {\na = \"file:///no/such\"\n}"),
		`v.hcl:9: secrets_from.a: read the secret: open /no/such: no such file or directory`,
		with("secrets_from {\na = \"file:///dev/zero\"\n}"),
		`v.hcl:9: secrets_from.a: read the secret: /dev/zero is not a regular file`,
		"x = " + strings.Repeat("[", 100), `v.hcl:1: nested deeper than 64 levels`,
		with(
			"capability {\naccess_mode = \"single-node-writer\"\nattachment_mode = \"file-system\"\n}"),
		`v.hcl:4: capability: single-node-writer/file-system is there twice`,
		with("capability {\n  access_mode = \"single-node-writer\"\n}"),
		`v.hcl:8: capability: attachment_mode: is required`,
		with("capability {\naccess_mode = \"rw\"\nattachment_mode = \"disk\"\n}"),
		`v.hcl:9: capability: access_mode: "rw" is not one of single-node-reader-only, single-node-writer, single-node-single-writer, single-node-multi-writer, multi-node-reader-only, multi-node-single-writer, multi-node-multi-writer` + "\n" +
			`v.hcl:10: capability: attachment_mode: "disk" is not one of file-system, block-device`,
		"",
		`v.hcl:1: type: is required; write type = "csi"` + "\n" +
			`v.hcl:1: id: is missing` + "\n" +
			`v.hcl:1: plugin_id: is missing: the id of a CSI driver, as pannier driver status lists it` + "\n" +
			`v.hcl:1: capability: is missing: write at least one, such as capability { access_mode = "single-node-writer", attachment_mode = "file-system" }`,
		strings.Replace(goodVolume, `"v"`, `"../../etc"`, 1),
		`v.hcl:1: id: "../../etc" has the character '/': only visible ASCII characters other than '/' are allowed; ` +
			`write id = "etc"`,
		strings.Replace(goodVolume, `"v"`, `".."`, 1), `v.hcl:1: id: must not be ".."`,
		strings.Replace(goodVolume, `"v"`, `"`+long+`"`, 1), `v.hcl:1: id: is longer than 128 characters (129)`,
		strings.Replace(goodVolume, `"csi"`, `"iscsi"`, 1),
		`v.hcl:2: type: "iscsi" is not supported; write type = "csi"`,
		strings.Replace(goodVolume, `"v"`, `"v\n"`, 1),
		`v.hcl:1: id: "v\n" has the character '\n': only visible ASCII characters other than '/' are allowed; write id = "v"`,
	}, 2) {
		src, want := pair[0], pair[1]
		_, err := ParseVolume("v.hcl", []byte(src))
		wantProblems(t, err, want)
	}
}

func TestBadJSONVolume(t *testing.T) {
	src := `{
  "id": "v", "type": "csi",
  "plugin_di": "p",
  "capability": [{"access_mode": "single-node-writer",
    "attachment_mod": "file-system"}]
}`
	_, err := ParseVolume("v.json", []byte(src))
	wantProblems(t, err,
		`v.json:3: unsupported argument "plugin_di"; did you mean "plugin_id"?`,
		`v.json:5: capability: unsupported argument "attachment_mod"; did you mean "attachment_mode"?`,
		`v.json:5: capability: attachment_mode: is required`,
		`v.json:6: plugin_id: is missing: the id of a CSI driver, as pannier driver status lists it`)
}

func TestVolumeFileIsMissing(t *testing.T) {
	_, err := ReadVolume("/no/such.hcl")
	wantProblems(t, err, "/no/such.hcl: cannot be read: no such file or directory")
}

// A problem in a secrets block must not quote the block's contents.
func TestSecretsAreInNoProblem(t *testing.T) {
	for _, value := range []string{`"geheim${x}"`, `"geheim" + 1`, `["geheim"]`, `{ geheim = 1 }`, `geheim`, `geheim()`} {
		for _, block := range []string{"secrets", "secrets_from"} {
			_, err := ParseVolume("v.hcl", []byte(goodVolume+block+" {\n a = "+value+"\n}\n"))
			if err == nil || strings.Contains(err.Error(), "geheim") {
				t.Errorf("%s { a = %s }: %v", block, value, err)
			}
		}
	}
}

// hcl's parser is recursive: deep nesting in a file of the maximum size must not overflow the stack.
func TestLargestFileIsHarmless(t *testing.T) {
	for _, piece := range []string{"1+", "!", "! ", "-", "x?y:", "[0]", "${", "[", "{", "a.", "a {\n"} {
		src := "a = " + strings.Repeat(piece, (maxFile-10)/len(piece))
		if _, err := ParseVolume("v.hcl", []byte(src)); err == nil {
			t.Errorf("%q, many times: accepted", piece)
		}
	}
	_, err := ParseVolume("v.hcl", make([]byte, maxFile+1))
	wantProblems(t, err, "v.hcl: larger than 131072 bytes")
}

func FuzzVolume(f *testing.F) {
	f.Add("v.hcl", []byte(goodVolume))
	f.Add("v.json", []byte(`{"id": "v", "type": "csi", "plugin_id": "p", "capability": {"access_mode": "x"}}`))
	f.Add("v.hcl", []byte(`id = [for x in {}: x] secrets { a = "${b}" } capacity_min = 1e999999999`))
	for _, c := range nomadVolumes {
		f.Add(cmp.Or(c.file, "v.hcl"), []byte(c.src))
	}
	f.Fuzz(func(t *testing.T, name string, src []byte) {
		spec, err := ParseVolume(name, src)
		if err == nil && (claim.CheckVolumeID(spec.Id) != nil || claim.CheckID(spec.PluginId) != nil ||
			len(spec.Capabilities) == 0) {
			t.Fatalf("accepted: %v", spec)
		}
		// HCL's own parser takes less, and what it takes means the same.
		strict, strictErr := parseVolume(parseHCL, name, src)
		switch {
		case strictErr != nil || err == nil && proto.Equal(spec, strict):
		case err == nil:
			t.Fatalf("got %v, HCL's own parser %v", spec, strict)
		case !strings.Contains(err.Error(), "Nomad reads a number with a leading zero") &&
			!strings.Contains(err.Error(), "directives are not allowed"):
			t.Fatalf("refused: %v; HCL's own parser takes it as %v", err, strict)
		}
	})
}
