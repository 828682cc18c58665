return array{}
