"""The words behind a fact: read, compared and searched for secrets. ``learning.rejections`` decides by them."""
