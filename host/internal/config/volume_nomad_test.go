package config

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

func one(access, attachment string) []*hostv1.VolumeCapability {
	return []*hostv1.VolumeCapability{{AccessMode: access, AttachmentMode: attachment}}
}

func at(segments ...string) *hostv1.Topology {
	t := &hostv1.Topology{Segments: map[string]string{}}
	for i := 0; i < len(segments); i += 2 {
		t.Segments[segments[i]] = segments[i+1]
	}
	return t
}

// Volume specs in the forms that Nomad's documentation and that of CSI drivers show.
var nomadVolumes = map[string]struct {
	file string // volume.hcl if empty
	src  string
	want *hostv1.VolumeSpec
}{
	"EBS": {src: `
id           = "ebs_prod_db1"
namespace    = "default"
name         = "database"
type         = "CSI"
plugin_id    = "aws-ebs0"
capacity_max = "200 GiB"
capacity_min = "100gib"

capability {
  access_mode     = "single-node-reader-only"
  attachment_mode = "file-system"
}

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

mount_options {
  fs_type     = "ext4"
  mount_flags = ["noatime"]
}

topology_request {
  required {
    topology { segments { "topology.ebs.csi.aws.com/zone" = "eu-west-1b" } }
    topology { segments { "topology.ebs.csi.aws.com/zone" = "eu-west-1a", rack = "R1"} }
  }
  preferred {
    topology { segments { "topology.ebs.csi.aws.com/zone" = "eu-west-1a" rack = "R1" } }
  }
}

parameters {
  type      = "gp3"
  encrypted = "true"
  iops      = 3000
}
`, want: &hostv1.VolumeSpec{
		Id: "ebs_prod_db1", Namespace: "default", Name: "database", Type: "csi", PluginId: "aws-ebs0",
		CapacityMin: 100 << 30, CapacityMax: 200 << 30,
		Capabilities: append(one("single-node-reader-only", "file-system"), one("single-node-writer", "file-system")...),
		MountOptions: &hostv1.MountOptions{FsType: "ext4", MountFlags: []string{"noatime"}},
		TopologyRequest: &hostv1.TopologyRequest{
			Required: []*hostv1.Topology{
				at("topology.ebs.csi.aws.com/zone", "eu-west-1b"),
				at("topology.ebs.csi.aws.com/zone", "eu-west-1a", "rack", "R1"),
			},
			Preferred: []*hostv1.Topology{at("topology.ebs.csi.aws.com/zone", "eu-west-1a", "rack", "R1")},
		},
		Parameters: map[string]string{"type": "gp3", "encrypted": "true", "iops": "3000"},
	}},
	"Azure disk": {src: `
id          = "reports"
name        = "reports"
type        = "csi"
external_id = "/subscriptions/1111/resourceGroups/example/providers/Microsoft.Compute/disks/reports"
plugin_id   = "az-disk0"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
context = {
  "cachingMode" = "ReadOnly"
  fsType        = "xfs" // of the disk
}
mount_options = { fs_type = "xfs" }
`, want: &hostv1.VolumeSpec{
		Id: "reports", Name: "reports", Type: "csi", PluginId: "az-disk0",
		ExternalId:   "/subscriptions/1111/resourceGroups/example/providers/Microsoft.Compute/disks/reports",
		Capabilities: one("single-node-writer", "file-system"),
		Context:      map[string]string{"cachingMode": "ReadOnly", "fsType": "xfs"},
		MountOptions: &hostv1.MountOptions{FsType: "xfs"},
	}},
	"CephFS": {src: `
id        = "home[0]"
type      = "csi"
plugin_id = "ceph-fs"
capability { access_mode     = "multi-node-multi-writer"
             attachment_mode = "file-system" }
secrets    { adminID = "admin" adminKey = "key==" }
parameters {
  clusterID = "e9ba69fa",
  fsName    = "cephfs",
  csi.storage.kind = "dotted" # a key with dots
  "example.com/secret-name" = "ceph"
}
`, want: &hostv1.VolumeSpec{
		Id: "home[0]", Type: "csi", PluginId: "ceph-fs",
		Capabilities: one("multi-node-multi-writer", "file-system"),
		Secrets:      map[string]string{"adminID": "admin", "adminKey": "key=="},
		Parameters: map[string]string{
			"clusterID": "e9ba69fa", "fsName": "cephfs", "csi.storage.kind": "dotted",
			"example.com/secret-name": "ceph",
		},
	}},
	"SMB": {src: `
id = "smb", name = "smb", type = "csi", plugin_id = "smb", external_id = "smb"
capability {
  access_mode     = "multi-node-multi-writer"
  attachment_mode = "file-system"
}
mount_options { mount_flags = ["dir_mode=0777", "file_mode=0777", "uid=1000", "vers=3.0"] }
secrets = {
  username = "user"
  password = <<-EOF
    pass
  EOF
}
context = { source = "//smb.example.com/share" }
`, want: &hostv1.VolumeSpec{
		Id: "smb", Name: "smb", Type: "csi", PluginId: "smb", ExternalId: "smb",
		Capabilities: one("multi-node-multi-writer", "file-system"),
		MountOptions: &hostv1.MountOptions{MountFlags: []string{"dir_mode=0777", "file_mode=0777", "uid=1000", "vers=3.0"}},
		Secrets:      map[string]string{"username": "user", "password": "pass\n"},
		Context:      map[string]string{"source": "//smb.example.com/share"},
	}},
	"JuiceFS": {src: `
type = "csi"
id = "juicefs-volume"
name = "juicefs-volume"
external_id = "juicefs-volume"

capability {
  access_mode     = "multi-node-multi-writer"
  attachment_mode = "file-system"
}
plugin_id = "juicefs0"

secrets {
  name="juicefs-volume"
  metaurl="redis://:mypass@192.0.2.1:6379/1"
  bucket="http://192.0.2.2:9000/minio/juicefs-volume?list-type=2"
  storage="minio"
  "access-key"="miniokey" // quoted
  secret-key="miniopass"
}
`, want: &hostv1.VolumeSpec{
		Id: "juicefs-volume", Name: "juicefs-volume", Type: "csi", PluginId: "juicefs0", ExternalId: "juicefs-volume",
		Capabilities: one("multi-node-multi-writer", "file-system"),
		Secrets: map[string]string{
			"name": "juicefs-volume", "metaurl": "redis://:mypass@192.0.2.1:6379/1", "storage": "minio",
			"bucket": "http://192.0.2.2:9000/minio/juicefs-volume?list-type=2", "access-key": "miniokey", "secret-key": "miniopass",
		},
	}},
	"S3": {src: `
/* a bucket */
id        = "uploads"
name      = "uploads"
type      = "csi"
plugin_id = "ru.yandex.s3.csi"
capability {
  access_mode     = "multi-node-multi-writer"
  attachment_mode = "file-system"
}
secrets {
  accessKeyID     = "key"
  secretAccessKey = "secret \u2713 \"quoted\""
  endpoint        = "https://s3.example.com"
}
parameters {
  mounter = "geesefs"
  options = "--memory-limit 1000 --dir-mode 0777 --file-mode 0666"
  usePathStyle = 0
}
`, want: &hostv1.VolumeSpec{
		Id: "uploads", Name: "uploads", Type: "csi", PluginId: "ru.yandex.s3.csi",
		Capabilities: one("multi-node-multi-writer", "file-system"),
		Secrets: map[string]string{
			"accessKeyID": "key", "secretAccessKey": `secret ✓ "quoted"`, "endpoint": "https://s3.example.com",
		},
		Parameters: map[string]string{
			"mounter": "geesefs", "options": "--memory-limit 1000 --dir-mode 0777 --file-mode 0666", "usePathStyle": "0",
		},
	}},
	"JSON": {file: "volume.json", src: `{
  "id": "ebs_prod_db1", "namespace": "default", "name": "database", "type": "csi", "plugin_id": "plugin_id",
  "external_id": "vol-23452345",
  "capacity_min": "10GiB", "capacity_max": "20G",
  "capability": [
    {"access_mode": "single-node-writer", "attachment_mode": "file-system"},
    {"access_mode": "single-node-reader-only", "attachment_mode": "block-device"}
  ],
  "context": [{"endpoint": "http://192.0.2.101:9425"}],
  "mount_options": [{"fs_type": "ext4", "mount_flags": ["ro"]}],
  "topology_request": {
    "preferred": [{"topology": {"segments": {"topology.kubernetes.io/zone": "z1"}}}],
    "required": [
      {"topology": {"segments": {"rack": "R1"}}},
      {"topology": [{"segments": {"rack": "R2", "zone": "us-east-1a"}}, {"segments": [{"rack": "R3"}]}]}
    ]
  },
  "parameters": [{"example.com/fstype": "ext4", "size": 5}],
  "secrets": {"example/secret": "xyzzy"}
}`, want: &hostv1.VolumeSpec{
		Id: "ebs_prod_db1", Namespace: "default", Name: "database", Type: "csi", PluginId: "plugin_id",
		ExternalId: "vol-23452345", CapacityMin: 10 << 30, CapacityMax: 20_000_000_000,
		Capabilities: append(one("single-node-writer", "file-system"), one("single-node-reader-only", "block-device")...),
		Context:      map[string]string{"endpoint": "http://192.0.2.101:9425"},
		MountOptions: &hostv1.MountOptions{FsType: "ext4", MountFlags: []string{"ro"}},
		TopologyRequest: &hostv1.TopologyRequest{
			Preferred: []*hostv1.Topology{at("topology.kubernetes.io/zone", "z1")},
			Required:  []*hostv1.Topology{at("rack", "R1"), at("rack", "R2", "zone", "us-east-1a"), at("rack", "R3")},
		},
		Parameters: map[string]string{"example.com/fstype": "ext4", "size": "5"},
		Secrets:    map[string]string{"example/secret": "xyzzy"},
	}},
	"modes at the top level": {src: `
type            = "csi"
id              = "mysql"
name            = "mysql"
external_id     = "vol-0b756b75620d63af5"
access_mode     = "single-node-writer"
attachment_mode = "file-system"
plugin_id       = "aws-ebs0"
`, want: &hostv1.VolumeSpec{
		Id: "mysql", Name: "mysql", Type: "csi", PluginId: "aws-ebs0", ExternalId: "vol-0b756b75620d63af5",
		Capabilities: one("single-node-writer", "file-system"),
	}},
	"modes at both levels": {src: `
type        = "csi"
id          = "mysql"
plugin_id   = "aws-ebs0"
access_mode = "single-node-writer"
"capability" { "access_mode" = "single-node-writer", "attachment_mode" = "file-system" }
`, want: &hostv1.VolumeSpec{
		Id: "mysql", Type: "csi", PluginId: "aws-ebs0",
		Capabilities: one("single-node-writer", "file-system"),
	}},
	"topology on one line": {src: `
id = "v" type = "csi" plugin_id = "p"
topology_request { preferred { topology { segments { rack = "R1", zone = "z" } } topology { segments { rack = "R2" } } } required { topology { segments = { "a.b/c" = "d" } } } }
capability { access_mode = "single-node-writer" attachment_mode = "file-system" }
`, want: &hostv1.VolumeSpec{
		Id: "v", Type: "csi", PluginId: "p", Capabilities: one("single-node-writer", "file-system"),
		TopologyRequest: &hostv1.TopologyRequest{
			Preferred: []*hostv1.Topology{at("rack", "R1", "zone", "z"), at("rack", "R2")},
			Required:  []*hostv1.Topology{at("a.b/c", "d")},
		},
	}},
	"snapshot": {src: `
id           = "restored"
name         = "restored"
type         = "csi"
plugin_id    = "hostpath"
snapshot_id  = "snap-12345" # or clone_id, see below
#clone_id    = "vol-abcdef"
capacity_min = ""
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}`, want: &hostv1.VolumeSpec{
		Id: "restored", Name: "restored", Type: "csi", PluginId: "hostpath", SnapshotId: "snap-12345",
		Capabilities: one("single-node-writer", "file-system"),
	}},
	"clone": {src: `
id = "copy", type = "csi", plugin_id = "hostpath", clone_id = "e8f6b1e0-7d2c"
capacity_min = "1.5G"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "block-device"
}`, want: &hostv1.VolumeSpec{
		Id: "copy", Type: "csi", PluginId: "hostpath", CloneId: "e8f6b1e0-7d2c", CapacityMin: 1_500_000_000,
		Capabilities: one("single-node-writer", "block-device"),
	}},
}

func TestNomadVolumesAreRead(t *testing.T) {
	for name, c := range nomadVolumes {
		t.Run(name, func(t *testing.T) {
			file := c.file
			if file == "" {
				file = "volume.hcl"
			}
			got := check.Must(ParseVolume(file, []byte(c.src)))(t)
			if !proto.Equal(got, c.want) {
				t.Fatalf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

// What Nomad takes and Pannier does not, with the line to write instead.
func TestNomadVolumesAreRefusedWithAReason(t *testing.T) {
	with := func(line string) string { return goodVolume + line + "\n" }
	for pair := range slices.Chunk([]string{
		`
type      = "host"
name      = "data"
node_pool = "default"
plugin_id = "mkdir"
capability {
  access_mode = "single-node-writer"
}
`,
		`v:2: ` + ofHost,
		with("per_alloc = true\nread_only = false\nsource = \"x\""),
		`v:8: per_alloc: ` + volumeFields.refused["per_alloc"] + "\n" +
			`v:9: read_only: ` + ofWorkload + "\n" +
			`v:10: source: ` + ofWorkload,
		with(`capacity = "10GiB"`),
		`v:8: capacity: write capacity_min = "10GiB", and capacity_max for the most that it may have`,
		with(`capacity_min = "10 Gigs"`), `v:8: capacity_min: "10 Gigs" is not a size such as "10GiB"`,
		strings.Replace(goodVolume, `"v"`, `"data/0"`, 1),
		`v:1: id: "data/0" has the character '/': only visible ASCII characters other than '/' are ` +
			`allowed; write id = "data-0"`,
		`{"Volumes": [{"ID": "v"}]}`,
		`v:1: Volumes: ` + ofHTTP + "\n" +
			`v:1: type: is required; write type = "csi"` + "\n" +
			`v:1: id: is missing` + "\n" +
			`v:1: plugin_id: is missing: the id of a CSI driver, as pannier driver status lists it` + "\n" +
			`v:1: capability: is missing: write at least one, such as capability { access_mode = "single-node-writer", attachment_mode = "file-system" }`,
		with(`topology_request { topology { segments { rack = "R1" } } }`),
		`v:8: topology_request: topology: write required { topology { segments { ... } } }, or preferred`,
		with(`topology_request { required { topology { segments { a = "b" } segments { a = "c" } } } }`),
		`v:8: topology_request: required: topology: segments: block given twice, first on line 8`,
		"id = \"v\"\ntype = \"csi\"\nplugin_id = \"p\"\naccess_mode = \"single-node-writer\"",
		`v:1: attachment_mode: is required too, or a capability block with both`,
		with("access_mode = \"multi-node-single-writer\"\nattachment_mode = \"file-system\""),
		`v:8: access_mode: is in none of the capability blocks: leave it out here, or write a capability block with it`,
		with("parameters {\n encrypted = true\n}\nsecrets { tls = false }"),
		`v:9: parameters.encrypted: write "true": Nomad gives the driver 1 or 0 for a boolean without quotes` + "\n" +
			`v:11: secrets.tls: write it in quotes: Nomad gives the driver 1 or 0 for a boolean without quotes`,
		with("parameters { mode = 0755 }"),
		`v:8: mode: Nomad reads a number with a leading zero as octal; write "0755", or the number that is meant`,
		with("context { n = 100000000000000000000 }"),
		`v:8: context.n: write the number in quotes, as the driver is to get it`,
		with("parameters {\n path = \"/data/${x}\"\n}"),
		`v:9: parameters.path: variables are not allowed here; write $${ for a literal ${`,
		with(`name = "100%{x}"`), `v:8: name: directives are not allowed here; write %%{ for a literal %{`,
		with(`parameters { csi.storage.k8s.io/fstype = "ext4" }`),
		`v:8: after "csi.storage.k8s.io", an = and a value or a block in braces are required; ` +
			`a key with other characters than letters, digits, '-', '_' and '.' needs quotes`,
		with(`parameters { a = { b = "c" } }`), `v:8: parameters.a: a string is required, not an object`,
		with("parameters { a = \"b\" }\nparameters = { c = \"d\" }"),
		`v:9: parameters: block given twice, first on line 8`,
		with("parameters {\n a = \"b\""), `v:8: a } is missing for the { on line 8`,
		with("}"), `v:8: an argument or a block is required here, not "}"`,
		with(`mount_options { mount_flags = "noatime" }`),
		`v:8: mount_options: mount_flags: a list of strings is required, not a string`,
		with(`mount_options { options = ["noatime"] }`), `v:8: mount_options: unsupported argument "options"`,
	}, 2) {
		src, want := pair[0], pair[1]
		_, err := ParseVolume("v", []byte(src))
		wantProblems(t, err, want)
	}
}
