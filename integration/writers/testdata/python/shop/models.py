from django.db import models


class Order(models.Model):
    id = models.BigIntegerField(primary_key=True)
    email = models.TextField()
    total = models.FloatField()

    class Meta:
        db_table = "orders"
        managed = False
