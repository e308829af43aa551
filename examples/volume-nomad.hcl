# A spec in the forms that Nomad takes: several blocks and arguments on a line, keys in quotes, blocks with an equals
# sign. See docs/volume-spec.md, "Specs written for Nomad".

id           = "database"
name         = "database"
type         = "csi"
plugin_id    = "aws-ebs0"
capacity_min = "100G"
capacity_max = "200G"

capability { access_mode = "single-node-writer", attachment_mode = "file-system" }

topology_request {
  required {
    topology { segments { "topology.ebs.csi.aws.com/zone" = "eu-west-1a" } }
    topology { segments { "topology.ebs.csi.aws.com/zone" = "eu-west-1b", rack = "R1" } }
  }
}

parameters = {
  type        = "gp3"
  "encrypted" = "true"
}
