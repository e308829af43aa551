plugin "volumes-page" {
  user = "nobody"
  listen "http" {
    address = "127.0.0.1:8080"
  }
  api {
    policy = "volumes-page" # what it may do, where ACLs are on
  }
}
